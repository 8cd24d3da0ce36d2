"""`programs.py` behind the start protocol of templates: `python -m ... NAME [ARGUMENT]`."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from kcl_client._preload import serve
from tests.process.children.programs import PROGRAMS

if __name__ == "__main__":
    serve(int(os.environ.pop("KCL_PRELOAD_FD")))
    with suppress(BrokenPipeError):
        PROGRAMS[sys.argv[1]](sys.argv[2])
