"""The careful record processor, in a program that takes some seconds to import: the first argument says how many."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from kcl_client import run
from kcl_local.demo.check import DIRECTORY_VARIABLE
from tests.process.processors.careful import Careful

if __name__ == "__main__":
    time.sleep(float(sys.argv[1]))  # noqa: TID251 - as an import does
    processor = Careful(Path(os.environ[DIRECTORY_VARIABLE]))
    try:
        run(processor)
    finally:
        processor.close()
