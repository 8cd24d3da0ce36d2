"""`App`: what it becomes, and where it does nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kcl_client import Record
from kcl_client._function import CannotRun
from kcl_client.app import App

DEADLINE_S = 60
TEXT = """
import sys
from kcl_client.app import App

app = App("orders", concurrency=4, properties={"childPreload": True})


@app.process
async def handle(data: bytes) -> None: ...


print(app.command())
app.run(["--no-such-option"] if "refused" in sys.argv else None)
print("returned")
"""


def handle(record: Record) -> None: ...


def test_the_function_stays_as_it_is() -> None:
    app = App("orders")
    assert app.process(handle) is handle
    assert app.command() == ["run", "orders", f"{__name__}:handle"]


def test_options_are_those_of_the_command() -> None:
    app = App(
        "orders",
        application="billing",
        start="2h",
        concurrency=8,
        checkpoint_every_s=2.5,
        region="eu-west-1",
        properties={"maxRecords": 100, "childPreload": False},
        local=True,
    )
    app.process(handle)
    assert app.command()[3:] == [
        "--application=billing",
        "--from=2h",
        "--concurrency=8",
        "--checkpoint-every=2.5",
        "--region=eu-west-1",
        "--local",
        "--set=maxRecords=100",
        "--set=childPreload=false",
    ]


def test_a_second_function_a_local_one_and_none_are_refused() -> None:
    def inner(record: Record) -> None: ...

    def wrong(a: int, b: int) -> None: ...

    app = App("orders")
    with pytest.raises(TypeError, match="this App has no function"):
        app.command()
    with pytest.raises(TypeError, match="define it at the top level of the file"):
        app.process(inner)
    with pytest.raises(CannotRun, match="takes two arguments"):
        app.process(wrong)
    app.process(handle)
    with pytest.raises(TypeError, match="this App has the function handle already"):
        app.process(handle)


def test_a_name_that_leads_to_another_function_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    app = App("orders")
    app.process(handle)
    monkeypatch.setattr(sys.modules[__name__], "handle", None)
    with pytest.raises(TypeError, match="put it on top of its other decorators"):
        app.command()


def python(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        env={**os.environ, **variables},
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "parts").mkdir()
    for path in (tmp_path / "consumer.py", tmp_path / "parts" / "consumer.py"):
        path.write_text(TEXT, "utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "target"),
    [
        (("consumer.py",), "consumer.py:handle"),
        (("parts/consumer.py",), "parts/consumer.py:handle"),
        (("-m", "parts.consumer"), "parts.consumer:handle"),
    ],
)
def test_the_program_becomes_the_command_for_itself(
    folder: Path, words: tuple[str, ...], target: str
) -> None:
    done = python(folder, *words, "--print-properties")
    assert f"'run', 'orders', '{target}', '--concurrency=4', '--set=childPreload=true'" in done.stdout
    assert f"-m kcl_client.run {target} --concurrency 4\n" in done.stdout
    assert "childPreload = true\n" in done.stdout
    assert "returned" not in done.stdout
    assert "returned" in done.stderr, "the process that checks the function imports the file, too"
    assert done.returncode == 0


def test_words_of_the_command_line_overrule_and_may_be_given_by_the_program(folder: Path) -> None:
    done = python(folder, "consumer.py", "--concurrency", "9", "--print-properties")
    assert "--concurrency 9\n" in done.stdout
    done = python(folder, "consumer.py", "refused")
    assert "No such option" in done.stderr
    assert done.returncode == 2


def test_it_does_nothing_where_its_file_is_imported_and_in_a_child(folder: Path) -> None:
    for done in (
        python(folder, "-c", "import consumer"),
        python(folder, "consumer.py", KCL_SHARD_ID="shardId-0"),
        python(folder, "-m", "kcl_client.run", "consumer:handle"),
    ):
        assert done.returncode == 0, done.stderr
        assert "returned" in done.stdout + done.stderr, "where the daemon imports it, stdout is the daemon's"


def test_a_program_that_calls_it_from_a_function_runs_the_function_of_its_module(folder: Path) -> None:
    (folder / "main.py").write_text(
        "import consumer\ndef main():\n    consumer.app.run(['--print-properties'])\nmain()\n", "utf-8"
    )
    done = python(folder, "main.py")
    assert "-m kcl_client.run consumer:handle --concurrency 4\n" in done.stdout
    assert done.returncode == 0
