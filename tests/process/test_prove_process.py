"""`kcl-daemon prove --local` as a process: nothing is left in the endpoints, however it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

import boto3
import orjson
import pytest

from tests.process.local import Local, local_process

RUN_WITHIN_S = 60


@pytest.fixture(scope="module")
def endpoints() -> Generator[Local]:
    with local_process() as local:
        yield local


def left(local: Local) -> tuple[list[str], list[str]]:
    keys = ("local", "local")
    with (
        closing(boto3.client("kinesis", "us-east-1", None, True, None, local.kinesis_url, *keys)) as kinesis,
        closing(
            boto3.client("dynamodb", "us-east-1", None, True, None, local.dynamodb_url, *keys)
        ) as dynamodb,
    ):
        return kinesis.list_streams()["StreamNames"], dynamodb.list_tables()["TableNames"]


def environment(folder: Path, local: Local | None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    more = {} if local is None else local.environment
    return {
        **kept,
        **more,
        "XDG_STATE_HOME": str(folder / "state"),
        "XDG_RUNTIME_DIR": str(folder / "state"),
        "TMPDIR": str(folder),
    }


@contextmanager
def proving(folder: Path, local: Local | None, *words: str) -> Generator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.process.proof", "--report", str(folder / "report"), *words]
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        command,
        cwd=root,
        env=environment(folder, local),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str]) -> str:
    text, _ = process.communicate(timeout=RUN_WITHIN_S)
    return text


def until_made(process: subprocess.Popen[str]) -> str:
    """The run ID, once stream and table are there."""
    assert process.stdout is not None
    for line in process.stdout:
        found = re.search(r"made (kcl-prove-[0-9a-f]{8})-orders", line)
        if found:
            return found[1]
    raise AssertionError("it ended before it had made anything")


def state_files(folder: Path) -> list[Path]:
    return list((folder / "state").rglob("*.jsonl"))


def test_a_run_with_endpoints_of_its_own_removes_everything_and_reports(tmp_path: Path) -> None:
    with proving(tmp_path, None, "--local") as process:
        text = said(process)
        assert process.returncode == 0, text
    assert text.splitlines()[-1] == "lost 0"
    assert "result          right" in text
    (data,) = (tmp_path / "report").glob("*.json")
    assert orjson.loads(data.read_bytes())["environment"]["endpoints"] == "local"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["report", "state"]
    assert state_files(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_removes_everything(tmp_path: Path, endpoints: Local, number: signal.Signals) -> None:
    with proving(tmp_path, endpoints, "--local", "--size", "large") as process:
        run_id = until_made(process)
        assert left(endpoints) == ([f"{run_id}-orders"], [f"{run_id}-app"])
        process.send_signal(number)
        text = said(process)
        assert process.returncode == 128 + number, text
    assert text.splitlines()[-1] == f"stopped by {number.name}"
    assert left(endpoints) == ([], [])
    assert [each.name for each in tmp_path.iterdir()] == ["state"]
    assert state_files(tmp_path) == []


def test_after_sigkill_clean_removes_everything(tmp_path: Path, endpoints: Local) -> None:
    with proving(tmp_path, endpoints, "--local", "--size", "large") as process:
        run_id = until_made(process)
        with proving(tmp_path, None, "--clean") as cleaning:
            assert f"{run_id} is at work" in said(cleaning)
        process.kill()
        process.wait(RUN_WITHIN_S)
    assert left(endpoints) == ([f"{run_id}-orders"], [f"{run_id}-app"])
    assert (tmp_path / run_id).exists()
    with proving(tmp_path, None, "--clean") as cleaning:
        text = said(cleaning)
        assert cleaning.returncode == 0, text
    assert text == f"{run_id}: removed 5 of 5 things in us-east-1\n"
    assert left(endpoints) == ([], [])
    assert [each.name for each in tmp_path.iterdir()] == ["state"]
    assert state_files(tmp_path) == []


def test_after_sigkill_endpoints_of_its_own_take_everything_with_them(tmp_path: Path) -> None:
    with proving(tmp_path, None, "--local", "--size", "large") as process:
        until_made(process)
        process.kill()
        process.wait(RUN_WITHIN_S)
    assert len(state_files(tmp_path)) == 1
    with proving(tmp_path, None, "--clean") as cleaning:
        assert "removed 5 of 5" in said(cleaning)
        assert cleaning.returncode == 0
    assert state_files(tmp_path) == []


def test_a_run_estimated_above_most_ends_at_once_and_leaves_nothing(tmp_path: Path, endpoints: Local) -> None:
    with proving(tmp_path, endpoints, "--local", "--most", "0.01") as process:
        text = said(process)
        assert process.returncode == 2, text
    assert "the estimate is 0.03 dollars, above --most 0.01" in text
    assert left(endpoints) == ([], [])
