"""Where a function comes from: its module or file, and what is said where it cannot be had."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kcl_protocol.codec import encode
from tests.unit.client.support import BATCH, INITIALIZE

DEADLINE_S = 60
LINE = "def handle(data: bytes) -> None: ...\n"


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kcl_client.run", *words]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S, check=False, env=environment
    )


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")


def test_a_module_of_the_current_folder_a_package_and_a_file_elsewhere(tmp_path: Path) -> None:
    write(
        tmp_path,
        consumer=LINE,
        parts__consumer="print('imported')\n" + LINE,
        parts__near="import beside\nclass C:\n    @staticmethod\n    def handle(data: bytes) -> None: ...\n",
        parts__beside="",
    )
    for target, where in (
        ("consumer:handle", "consumer.py:1"),
        ("parts.consumer:handle", "parts/consumer.py:2"),
        ("parts/consumer.py:handle", "parts/consumer.py:2"),
        (f"{tmp_path}/parts/near.py:C.handle", "parts/near.py:3"),
    ):
        done = run(tmp_path, "--check", target)
        assert (done.returncode, done.stderr) in ((0, ""), (0, "imported\n"))
        assert f'"where": "{where}"' in done.stdout
        assert "imported" not in done.stdout


@pytest.mark.parametrize(
    ("files", "target", "said"),
    [
        ({}, "consumer", "consumer is not MODULE:FUNCTION, such as consumer:handle"),
        ({}, "consumer:1", "consumer:1 is not MODULE:FUNCTION"),
        ({}, "consumer:handle", "there is no module consumer; looked in "),
        ({}, "parts.consumer:handle", "there is no module parts; looked in "),
        ({}, "consumer.py:handle", "there is no file consumer.py; looked from "),
        (
            {"consumer": LINE},
            "consumer:hanlde",
            "consumer.py: there is no hanlde in consumer; did you mean handle?",
        ),
        ({"consumer": LINE}, "consumer:run", "consumer.py: there is no run in consumer; it has handle"),
        (
            {"consumer": "value = 1"},
            "consumer:x",
            "consumer.py: there is no x in consumer; it has no function",
        ),
        ({"consumer": "value = 1"}, "consumer:value", "1 is not a function"),
        ({"consumer": "\ndef f(:"}, "consumer:f", "consumer.py:2: consumer cannot be imported: SyntaxError"),
        (
            {"consumer": "\nimport nowhere_to_be_found"},
            "consumer:f",
            "consumer.py:2: consumer cannot be imported: ModuleNotFoundError: No module named 'nowhere_to_be_found'",
        ),
        (
            {"consumer": "import other", "other": "def f():\n    raise ValueError('bad')\nf()"},
            "consumer:f",
            "other.py:2: consumer cannot be imported: ValueError: bad",
        ),
        (
            {"consumer": "import sys\nsys.exit(3)"},
            "consumer.py:f",
            'consumer.py:2: consumer cannot be imported: SystemExit: 3; guard what ends the program with `if __name__ == "__main__":`',
        ),
    ],
)
@pytest.mark.parametrize("check", [("--check",), ()])
def test_a_function_that_cannot_be_imported_is_reported_with_its_place_and_exit_code_2(
    tmp_path: Path, files: dict[str, str], target: str, said: str, check: tuple[str, ...]
) -> None:
    write(tmp_path, **files)
    done = run(tmp_path, *check, target)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(said)
    assert "importlib" not in done.stderr
    assert "kcl_client/" not in done.stderr
    assert (said in done.stdout.replace('\\"', '"')) == bool(check)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "the following arguments are required: MODULE:FUNCTION"),
        (("consumer:handle", "--concurrency", "0"), "--concurrency must be at least 1"),
        (("consumer:handle", "--checkpoint-every", "0"), "--checkpoint-every must be above 0"),
        (
            ("consumer:handle", "--concurrency", "4"),
            "consumer.py:1: handle cannot run concurrently; make it `async def`",
        ),
        (
            ("consumer:batches", "--concurrency", "4"),
            "consumer.py:3: batches takes a Batch; concurrency needs",
        ),
    ],
)
def test_wrong_words_are_refused(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    write(
        tmp_path,
        consumer=LINE + "from kcl_client import Batch\nasync def batches(batch: Batch) -> None: ...\n",
    )
    done = run(tmp_path, *words)
    assert done.returncode == 2
    assert said in done.stderr


def test_the_function_of_this_name_is_not_replaced_by_the_module() -> None:
    code = """
import kcl_client
try:
    import kcl_client.run
except ImportError as error:
    assert "from kcl_client import run" in str(error)
else:
    raise AssertionError
from kcl_client import run
assert callable(run) and run is kcl_client.run
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=DEADLINE_S)


def test_multiprocessing_can_read_the_main_program_again(tmp_path: Path) -> None:
    text = """
import multiprocessing
def double(number: int) -> int:
    return 2 * number
def handle(data: bytes) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(double, [21]))
"""
    write(tmp_path, consumer=text)
    done = subprocess.run(
        [sys.executable, "-m", "kcl_client.run", "consumer:handle"],
        cwd=tmp_path,
        input=encode(INITIALIZE) + encode(BATCH),
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert b"[42]" in done.stderr
    assert done.stdout.count(b"status") == 2
    assert done.returncode == 0


def test_output_of_a_module_during_its_import_is_no_line_of_the_protocol(tmp_path: Path) -> None:
    write(tmp_path, consumer="import os\nprint('by python')\nos.system('echo by others')\n" + LINE)
    command = [sys.executable, "-m", "kcl_client.run", "consumer:handle"]
    done = subprocess.run(
        command, cwd=tmp_path, input=encode(INITIALIZE), capture_output=True, timeout=DEADLINE_S, check=True
    )
    assert done.stdout.split() == [b'{"action":"status","responseFor":"initialize"}']
    assert {b"by python", b"by others"} <= set(done.stderr.splitlines())
