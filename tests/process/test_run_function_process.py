"""`kcl-daemon run STREAM MODULE:FUNCTION` with real daemons and children: what a function gets, rejects, raises and loses."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from kcl_local import place
from tests.process.daemon import (
    END_WITHIN_S,
    GONE_WITHIN_S,
    Application,
    Daemon,
    application,
    processes_in,
    run_daemon,
    wait_until,
)
from tests.process.local import Local, kinesis_client

pytestmark = pytest.mark.timeout(300)

SHARD = "shardId-000000000000"
ORDER = """
import json, sys
from dataclasses import dataclass
from pathlib import Path
import pydantic
from kcl_client import Batch, Record, RejectRecord

@dataclass
class Order:
    id: int

class Model(pydantic.BaseModel):
    id: int

def note(value: object) -> None:
    with Path("seen.jsonl").open("a") as file:
        file.write(json.dumps(value) + "\\n")
"""
FORMS = {
    "dataclass": "def handle(order: Order) -> None:\n    note(order.id)\n",
    "pydantic": "def handle(order: Model) -> None:\n    note(order.id)\n",
    "record": "def handle(record: Record) -> None:\n    note(record.json()['id'])\n",
    "both": "def handle(order: Order, record: Record) -> None:\n    note(order.id + 0 * len(record.data))\n",
    "batch": "def handle(batch: Batch) -> None:\n    for record in batch:\n        note(record.json()['id'])\n",
    "async": "import asyncio\nasync def handle(order: Order) -> None:\n    await asyncio.sleep(0.01)\n    note(order.id)\n",
}


def write(folder: Path, function: str, name: str = "consumer") -> None:
    (folder / f"{name}.py").write_text(ORDER + function, "utf-8")


def put(app: Application, *texts: str) -> list[str]:
    """Their sequence numbers; they are all in one shard."""
    numbers = [
        app.kinesis.put_record(StreamName=app.name, Data=text.encode(), PartitionKey=f"key {index}")
        for index, text in enumerate(texts)
    ]
    return [answer["SequenceNumber"] for answer in numbers]


def orders(first: int, last: int) -> list[str]:
    return [json.dumps({"id": number}) for number in range(first, last + 1)]


def seen(folder: Path) -> list[Any]:
    path = folder / "seen.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def checkpoint(app: Application) -> str | None:
    return app.rows().get(SHARD, {}).get("checkpoint", {}).get("S")


@contextmanager
def running(app: Application, *words: str, target: str = "consumer:handle") -> Generator[Daemon]:
    command = ("run", app.name, target, f"--application={app.name}", *words)
    with run_daemon(app.directory, *command, environment=app.local.environment) as daemon:
        yield daemon


@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_a_function_gets_every_record_and_is_checkpointed_while_nothing_comes(
    local: Local, tmp_path: Path, form: str
) -> None:
    write(tmp_path, FORMS[form])
    more = ["--concurrency=4"] if form == "async" else []
    with application(local, tmp_path, f"function-{form}", shards=1) as app:
        numbers = put(app, *orders(1, 20))
        with running(app, "--checkpoint-every=0.2", *more) as daemon:
            wait_until(lambda: sorted(seen(tmp_path)) == list(range(1, 21)), "all are seen")
            wait_until(lambda: checkpoint(app) == numbers[-1], "the last one is checkpointed")
            assert daemon.loud() == []
            daemon.stop()


def test_an_undecodable_or_rejected_record_becomes_a_letter_in_the_current_folder(
    local: Local, tmp_path: Path
) -> None:
    write(
        tmp_path,
        "def handle(order: Order) -> None:\n    if order.id == 2:\n        raise RejectRecord('no 2')\n    note(order.id)\n",
    )
    with application(local, tmp_path, "function-rejects", shards=1) as app:
        put(app, *orders(1, 2), "no json", *orders(3, 3))
        with running(app, "--from=TRIM_HORIZON") as daemon:
            wait_until(lambda: seen(tmp_path) == [1, 3], "the others are seen")
            started = daemon.named("daemon_starting")[0]
            daemon.stop()
            assert daemon.named("child_failed") == []
    file = tmp_path / "function-rejects.dead-letters.jsonl"
    assert started["dead_letters"] == f"file:{file}"
    letters = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(base64.b64decode(each["data"]), each["error"]) for each in letters] == [
        (b'{"id": 2}', "no 2"),
        (b"no json", "cannot be decoded to Order: JSON is malformed: invalid character (byte 4)"),
    ]


def test_a_function_that_raises_names_the_record_with_one_traceback_and_the_policy_applies(
    local: Local, tmp_path: Path
) -> None:
    write(tmp_path, "def handle(order: Order) -> None:\n    1 / (order.id - 2)\n    note(order.id)\n")
    policy = {
        "poisonRecordPolicy": "DEADLETTER",
        "poisonRecordMaxFailures": 1,
        "childRestartBackoffMillis": 10,
    }
    changes = [f"--set={key}={value}" for key, value in policy.items()]
    with application(local, tmp_path, "function-raises", shards=1) as app:
        numbers = put(app, *orders(1, 3))
        with running(app, *changes) as daemon:
            wait_until(lambda: 3 in seen(tmp_path), "the record behind it is seen")
            failed = daemon.named("child_failed")
            said = [event["line"] for event in daemon.named("child_stderr")]
            daemon.stop()
    assert said.count("Traceback (most recent call last):") == len(failed) >= 1
    assert said.count("ZeroDivisionError: division by zero") == len(failed)
    notes = [line for line in said if line.startswith("kcl_client: at record")]
    assert set(notes) == {f"kcl_client: at record {numbers[1]}, partition key 'key 1'"}
    letters = (tmp_path / "function-raises.dead-letters.jsonl").read_text().splitlines()
    assert [json.loads(line)["sequenceNumber"] for line in letters] == [numbers[1]]


def test_without_a_place_for_letters_bad_data_fail_with_their_own_reason(
    local: Local, tmp_path: Path
) -> None:
    write(tmp_path, FORMS["dataclass"])
    with application(local, tmp_path, "function-nowhere", shards=1) as app:
        numbers = put(app, "no json", *orders(1, 1))
        with running(app, "--set=deadLetterDestination=", "--set=childRestartBackoffMillis=10") as daemon:
            daemon.wait_for("child_failed")
            said = [event["line"] for event in daemon.named("child_stderr")]
            assert "JSON is malformed" in "\n".join(said)
            assert f"kcl_client: at record {numbers[0]}, partition key 'key 0'" in said
            assert seen(tmp_path) == []
            daemon.stop()


def test_a_killed_child_loses_nothing(local: Local, tmp_path: Path) -> None:
    write(tmp_path, FORMS["dataclass"])
    with (
        application(local, tmp_path, "function-killed", shards=1) as app,
        running(app, "--checkpoint-every=60", "--set=childRestartBackoffMillis=10") as daemon,
    ):
        put(app, *orders(1, 50))
        pid = daemon.wait_for("child_started")["pid"]
        wait_until(lambda: len(seen(tmp_path)) > 0, "some are seen")
        os.kill(pid, signal.SIGKILL)
        numbers = put(app, *orders(51, 60))
        wait_until(lambda: set(seen(tmp_path)) == set(range(1, 61)), "all are seen")
        daemon.stop()
        assert checkpoint(app) == numbers[-1]


def test_several_children_run_a_plain_function_at_once(local: Local, tmp_path: Path) -> None:
    write(tmp_path, FORMS["dataclass"])
    with application(local, tmp_path, "function-lanes", shards=1) as app:
        numbers = put(app, *orders(1, 20))
        with running(app, "--concurrency=3", "--checkpoint-every=0.2") as daemon:
            wait_until(lambda: set(seen(tmp_path)) == set(range(1, 21)), "all are seen")
            wait_until(lambda: checkpoint(app) == numbers[-1], "the last one is checkpointed")
            assert {event["lane"] for event in daemon.named("child_started")} == {0, 1, 2}
            daemon.stop()


def test_a_properties_file_names_a_function_too(local: Local, tmp_path: Path) -> None:
    write(tmp_path, FORMS["dataclass"])
    with application(local, tmp_path, "function-file", shards=1) as app:
        put(app, *orders(1, 3))
        with app.daemon(
            f"{sys.executable} -m kcl_client.run consumer:handle --checkpoint-every 2.5"
        ) as daemon:
            wait_until(lambda: seen(tmp_path) == [1, 2, 3], "all are seen")
            daemon.stop()


APP = """
from kcl_client.app import App

app = App("orders")
@app.process
def handle(order: Order) -> None:
    note(["VERSION", order.id])

app.run()
"""


def local_put(*texts: str) -> None:
    found = place.find()
    assert found is not None
    with kinesis_client(found["AWS_ENDPOINT_URL_KINESIS"]) as kinesis:
        for text in texts:
            kinesis.put_record(StreamName="orders", Data=text.encode(), PartitionKey="key")


@contextmanager
def program(folder: Path, *words: str) -> Generator[tuple[subprocess.Popen[bytes], Path]]:
    """With all that it says in a file; in its folder nothing may run at the end, however it ended."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "KCL_"))}
    said = folder / "said.txt"
    with (
        said.open("wb") as log,
        subprocess.Popen(
            [sys.executable, *words],
            cwd=folder,
            env={**environment, "AWS_PROFILE": "elsewhere", "XDG_STATE_HOME": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        ) as process,
    ):
        try:
            yield process, said
            process.wait(END_WITHIN_S)
            _, alive = psutil.wait_procs(processes_in(folder), timeout=GONE_WITHIN_S)
            assert alive == [], said.read_text()
        finally:
            process.kill()
            for each in processes_in(folder):
                each.kill()


def test_an_app_on_endpoints_of_its_own_is_reloaded_with_its_records_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    write(tmp_path, APP.replace("VERSION", "one"))
    with program(tmp_path, "consumer.py", "--local", "--reload", "--shards=2") as (process, said):
        wait_until(lambda: "put a record: " in said.read_text(), "it says how to put one")
        assert """put a record: echo '{"id": 1}' | kcl-daemon put orders --local""" in said.read_text()
        local_put(*orders(1, 2))
        wait_until(lambda: seen(tmp_path) == [["one", 1], ["one", 2]], "the first version sees them")
        write(tmp_path, "def broken(:\n" + APP)
        wait_until(lambda: "not reloaded: consumer.py:" in said.read_text(), "the error is told")
        assert "SyntaxError" in said.read_text()
        local_put(*orders(3, 3))
        wait_until(lambda: seen(tmp_path)[2:] == [["one", 3]], "the first version runs on")
        write(tmp_path, APP.replace("VERSION", "two"))
        wait_until(lambda: said.read_text().count('"worker_started"') == 2, "it is restarted")
        local_put(*orders(4, 4))
        wait_until(lambda: seen(tmp_path)[3:] == [["two", 4]], "the second version sees only what is new")
        process.send_signal(signal.SIGINT)
        assert process.wait(END_WITHIN_S) == 0
        assert said.read_text().count('"event":"stop_requested","signal":"SIGINT"') == 1
    assert place.find() is None


@pytest.mark.parametrize("words", [(), ("--reload",)])
def test_nothing_is_left_of_a_command_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    write(tmp_path, FORMS["dataclass"])
    command = ("-m", "kcl_daemon", "run", "orders", "consumer:handle", "--local", *words)
    with program(tmp_path, *command) as (process, said):
        wait_until(lambda: '"child_started"' in said.read_text(), "it works")
        process.kill()


@pytest.mark.parametrize("words", [(), ("--reload",)])
def test_endpoints_of_somebody_else_are_named_and_their_end_is_told_and_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    write(tmp_path, FORMS["dataclass"])
    command = ("-m", "kcl_daemon", "run", "orders", "consumer:handle", "--local", *words)
    with subprocess.Popen([sys.executable, "-m", "kcl_local"], stdout=subprocess.DEVNULL) as theirs:
        try:
            wait_until(lambda: place.find() is not None, "they answer")
            found = place.find()
            assert found is not None
            named = f"{found['AWS_ENDPOINT_URL_KINESIS']}, process {theirs.pid}"
            with program(tmp_path, *command) as (process, said):
                wait_until(lambda: '"child_started"' in said.read_text(), "it works")
                assert f"on the local endpoints that run already: {named}\n" in said.read_text()
                theirs.kill()
                assert process.wait(END_WITHIN_S) == 1
        finally:
            theirs.kill()
    assert said.read_text().count(f"the local endpoints at {named}, have ended; start this again") == 1
    assert "regionName" not in said.read_text()


def test_a_second_ctrl_c_ends_it_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    write(
        tmp_path, "import time\ndef handle(order: Order) -> None:\n    note(order.id)\n    time.sleep(60)\n"
    )
    command = ("-m", "kcl_daemon", "run", "orders", "consumer:handle", "--local", "--reload")
    with program(tmp_path, *command) as (process, said):
        wait_until(lambda: '"child_started"' in said.read_text(), "it works")
        local_put(*orders(1, 1))
        wait_until(lambda: seen(tmp_path) == [1], "it is busy")
        process.send_signal(signal.SIGINT)
        wait_until(lambda: '"stop_requested"' in said.read_text(), "it stops")
        process.send_signal(signal.SIGINT)
        assert process.wait(END_WITHIN_S) == 128 + signal.SIGINT
        assert '"stopped_at_once"' in said.read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("consumer:two",), "consumer.py:18: two takes two arguments (a, b)"),
        (("consumer:text",), "consumer.py:19: text: nothing can be decoded to complex"),
        (("nowhere:handle",), "there is no module nowhere; looked in"),
        (
            ("consumer:handle", "--set=failoverTimeMillis=x"),
            "--set: failoverTimeMillis = x: not a whole number",
        ),
        (
            ("consumer:handle", "--set=failoverTimeMilis=1"),
            "--set: failoverTimeMilis is not a property; did you mean",
        ),
        (("consumer:handle", "--from=soon"), "'soon' is not a time"),
        (("consumer:handle", "--set=x"), "'x' is not KEY=VALUE"),
        (("my consumer.py:handle",), "there is no file my consumer.py"),
        (("consumer:handle", "--set=shardConcurrency=x"), "--set: shardConcurrency = x: "),
        (("consumer:handle", "--application=a b"), "--application: applicationName = a b: "),
    ],
)
def test_a_function_or_option_that_is_wrong_ends_with_exit_code_2(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    write(tmp_path, "def two(a, b): ...\ndef text(a: complex): ...\ndef handle(order: Order): ...\n")
    done = subprocess.run(
        [sys.executable, "-m", "kcl_daemon", "run", "orders", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=END_WITHIN_S,
        check=False,
    )
    assert said in done.stderr
    assert done.returncode == 2


def test_without_a_region_local_is_advised(tmp_path: Path) -> None:
    write(tmp_path, FORMS["dataclass"])
    environment = {"AWS_CONFIG_FILE": "/nowhere", "AWS_SHARED_CREDENTIALS_FILE": "/nowhere"}
    with run_daemon(tmp_path, "run", "orders", "consumer:handle", environment=environment) as daemon:
        assert daemon.end() == 2
        (failed,) = daemon.named("daemon_failed")
    assert failed["advice"].endswith("; without AWS: add --local")
