"""The Python client needs nothing but Python, and is there at once."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

import kcl_client
import kcl_protocol

FOLDERS = [str(Path(inspect.getfile(package)).parents[1]) for package in (kcl_client, kcl_protocol)]
# In pieces of reference work, of about 5 ms on a machine of today: 12 were seen. What must not be loaded at all,
# `tests/process/test_client_process.py` names.
IMPORT_MOST = 18.0
WITHIN_S = 200

# Isolated and without site-packages: the standard library and the two folders are all there is.
BARE = f"""
import sys
sys.path[:0] = {FOLDERS!r}
import kcl_client
from kcl_client import testing

class Upper(kcl_client.RecordProcessor):
    def process_records(self, batch, checkpointer):
        for record in batch:
            print(record.text().upper(), record.partition_key.encode("ascii", "backslashreplace"))
        checkpointer.checkpoint()

class Async(kcl_client.AsyncRecordProcessor):
    async def process_records(self, batch, checkpointer):
        await checkpointer.checkpoint()

records = ["one", testing.make_record("two", sequence_number="8", partition_key="\\ud800\\u00e9")]
report = testing.drive(Upper(), records, checkpoint_errors=["ThrottlingException"])
assert report.exit_code == 0 and report.exception is None, report
assert testing.drive(Async(), ["one"]).exit_code == 0
foreign = {{name.partition(".")[0] for name in sys.modules}} - sys.stdlib_module_names
print(sorted(foreign - {{"kcl_client", "kcl_protocol", "__main__"}}))
"""
TIMED = """
import time
began_s = time.process_time()
import kcl_client
took_s = time.process_time() - began_s
from tests.reference_work import piece_s  # afterwards: what it imports is not there before
print(took_s / sorted(piece_s() for _ in range(5))[2])
"""


def run(*words: str, **variables: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, *words],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=WITHIN_S,
        cwd=Path(__file__).parents[3],
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_client_runs_on_the_standard_library_alone() -> None:
    assert run("-I", "-S", "-c", BARE) == ["ONE b'key'", r"TWO b'\\ud800\\xe9'", "[]"]


def test_the_client_is_imported_within_its_time(tmp_path: Path) -> None:
    """Of CPU, the median of five. Compiled, as an installed package is."""
    compiled = {"PYTHONPYCACHEPREFIX": str(tmp_path), "PYTHONDONTWRITEBYTECODE": ""}
    assert median(float(run("-c", TIMED, **compiled)[0]) for _ in range(5)) < IMPORT_MOST
