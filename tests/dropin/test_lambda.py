"""Handlers of AWS Lambda, in Python and Node, by what is shipped for them, under the real daemon."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest

from kcl_local.changes.stream import StreamsOptions
from kcl_protocol.messages import (
    Action,
    Initialize,
    LeaseLost,
    ProcessRecords,
    Record,
    ShardEnded,
    ShutdownRequested,
)
from tests.dropin.matrix import ROOT, talk
from tests.dropin.obtain import powertools, powertools_for_node, serverless_snippets
from tests.dropin.resharding import QUICK, is_finished, open_shards, split
from tests.process.daemon import Application, application, run_daemon, wait_until
from tests.process.local import Local
from tests.process.test_changes_process import ITEMS, TABLE, table
from tests.process.test_poison_process import QUICK as QUICKLY_AGAIN
from tests.process.test_poison_process import SHARD, letters, put_poison
from tests.unit.client.lambda_facts import VARIABLES, assert_event

pytestmark = pytest.mark.timeout(300)

PROCESSORS: Final = Path(__file__).with_name("processors")
RUNNERS: Final = {
    "python": f"{sys.executable} -m kcl_client.aws_lambda",
    "node": f"node {ROOT / 'clients' / 'samples' / 'lambda' / 'kcl_lambda.js'}",
}
ENDS: Final = {"python": "py", "node": "js"}
ARN: Final = "arn:aws:kinesis:eu-west-1:111122223333:stream/orders"
NOON_MS: Final = 1_735_732_800_000
NUMBER: Final = 49_640_000_000_000_000_000_000_000_000_000_000_000_000_000_000_000_000_115


def is_there(language: str) -> None:
    if language == "node" and shutil.which("node") is None:
        pytest.skip("node is not installed: handlers for Node WERE NOT RUN")


@pytest.fixture(params=RUNNERS)
def language(request: pytest.FixtureRequest) -> str:
    is_there(str(request.param))
    return str(request.param)


def command(language: str, folder: Path, handler: str, *options: str) -> str:
    """What runs a handler of the tests', put into a folder."""
    end = ENDS[language]
    shutil.copy(PROCESSORS / f"lambda_handlers.{end}", folder / f"app.{end}")
    return " ".join(("env", f"LAMBDA_TASK_ROOT={folder}", RUNNERS[language], *options, handler))


def noted(folder: Path, shard_id: str = "shardId-*") -> list[dict[str, Any]]:
    """What the handlers have written down, by shard."""
    files = sorted(folder.glob(f"{shard_id}.jsonl"))
    whole = [file.read_bytes().rpartition(b"\n")[0] for file in files]
    return [json.loads(line) for text in whole for line in text.splitlines()]


def seen(folder: Path, shard_id: str = "shardId-*") -> list[str]:
    """Sequence numbers, in the order in which they came."""
    events = [each["event"] for each in noted(folder, shard_id)]
    return [record["kinesis"]["sequenceNumber"] for event in events for record in event["Records"]]


# Under the daemon


def test_every_record_is_in_a_documented_event_through_a_reshard(
    local: Local, tmp_path: Path, language: str
) -> None:
    with application(local, tmp_path, f"lambda-{language}", shards=2) as app:
        app.put(20)
        with app.daemon(command(language, tmp_path, "app.seen"), QUICK) as daemon:
            wait_until(lambda: app.stored(app.last_written), daemon.tail)
            parent = open_shards(app)[0]
            split(app, parent, open_then=3)
            app.put(10)
            wait_until(lambda: is_finished(app, parent), daemon.tail)
            wait_until(lambda: app.stored(open_shards(app)), daemon.tail)
            daemon.stop()
        lines = [event["line"] for event in daemon.named("child_stderr")]
        arn = app.kinesis.describe_stream_summary(StreamName=app.name)["StreamDescriptionSummary"][
            "StreamARN"
        ]
        assert not daemon.named("child_failed")
        assert not daemon.named("child_stray_output"), (
            "a print, also at the import, is not in the conversation"
        )
        assert "Loading function" in lines and any("seen" in line for line in lines)
        for shard_id in app.last_written:
            numbers = [int(number) for number in seen(tmp_path, shard_id)]
            assert numbers == sorted(set(numbers)), f"repeats or disorder in {shard_id}"
    assert len(seen(tmp_path)) == 2 * 20 + 3 * 10
    for each in noted(tmp_path):
        assert_event(each["event"])
        assert {record["eventSourceARN"] for record in each["event"]["Records"]} == {arn}
        assert 0 < each["left_ms"] <= 900_000
        for name, form in VARIABLES.items():
            assert re.fullmatch(form, each["variables"][name]), name
        assert each["context"] == {
            "function_name": "app",
            "function_version": "$LATEST",
            "invoked_function_arn": arn.replace(":kinesis:", ":lambda:").rpartition(":")[0] + ":function:app",
            "memory_limit_in_mb": "128",
            "log_group_name": "/aws/lambda/app",
        }


def test_children_forked_from_a_template_know_their_stream(local: Local, tmp_path: Path) -> None:
    with application(local, tmp_path, "lambda-preload", shards=2) as app:
        app.put(3)
        more = {**QUICK, "childPreload": "true"}
        with app.daemon(command("python", tmp_path, "app.seen"), more) as daemon:
            wait_until(lambda: app.stored(app.last_written), daemon.tail)
            daemon.stop()
            assert daemon.named("child_template_started") and not daemon.named("child_failed")
            assert not daemon.named("child_stray_output")
    assert len(seen(tmp_path)) == 6
    for each in noted(tmp_path):
        assert_event(each["event"])
        assert each["event"]["Records"][0]["eventSourceARN"].endswith(":stream/lambda-preload")
        assert each["variables"]["AWS_REGION"] == each["event"]["Records"][0]["awsRegion"]


def test_a_handler_that_names_its_first_failure_only_gets_the_rest_of_the_batch(
    local: Local, tmp_path: Path, language: str
) -> None:
    dead = tmp_path / "dead.jsonl"
    more = {**QUICK, "deadLetterDestination": f"file:{dead}"}
    with application(local, tmp_path, f"lambda-first-{language}", shards=1) as app:
        app.put(4)
        number = put_poison(app, "poison 1")
        app.put(5)
        with app.daemon(command(language, tmp_path, "app.first"), more) as daemon:
            wait_until(lambda: app.stored(app.last_written), daemon.tail)
            daemon.stop()
            assert not daemon.named("child_failed")
    (letter,) = letters(dead)
    assert (letter["sequenceNumber"], letter["cause"]) == (number, "rejected")
    processed = list(map(int, (tmp_path / "processed.txt").read_text().split()))
    assert len(processed) == 9 and processed == sorted(set(processed))


def test_named_records_become_letters_at_once_where_that_is_wanted(
    local: Local, tmp_path: Path, language: str
) -> None:
    dead = tmp_path / "dead.jsonl"
    more = {**QUICK, "deadLetterDestination": f"file:{dead}"}
    with application(local, tmp_path, f"lambda-letters-{language}", shards=1) as app:
        app.put(4)
        number = put_poison(app, "poison 1")
        app.put(4)
        with app.daemon(command(language, tmp_path, "app.partial", "--reject-named"), more) as daemon:
            wait_until(lambda: app.stored(app.last_written), daemon.tail)
            daemon.stop()
            assert not daemon.named("child_failed")
    (letter,) = letters(dead)
    assert (letter["sequenceNumber"], letter["cause"]) == (number, "rejected")
    assert letter["error"] == "named in batchItemFailures"
    assert len(seen(tmp_path)) == len(set(seen(tmp_path))) == 9


def test_without_a_place_for_letters_the_batch_comes_again_from_the_failure(
    local: Local, tmp_path: Path, language: str
) -> None:
    with application(local, tmp_path, f"lambda-again-{language}", shards=1) as app:
        app.put(4)
        good = app.last_written[SHARD]
        number = put_poison(app, "poison 1")
        app.put(4)
        with app.daemon(command(language, tmp_path, "app.partial"), {**QUICK, **QUICKLY_AGAIN}) as daemon:
            daemon.wait_for("child_failed", times=2)
            assert app.rows()[SHARD]["checkpoint"].get("S") == good
            daemon.stop()
    firsts = [each["event"]["Records"][0]["kinesis"]["sequenceNumber"] for each in noted(tmp_path)]
    assert firsts[0] != number and set(firsts[1:]) == {number}


def test_a_handler_that_raises_is_the_matter_of_the_poison_policy(
    local: Local, tmp_path: Path, language: str
) -> None:
    dead = tmp_path / "dead.jsonl"
    more = {
        **QUICK,
        **QUICKLY_AGAIN,
        "poisonRecordPolicy": "DEADLETTER",
        "poisonRecordMaxFailures": 1,
        "deadLetterDestination": f"file:{dead}",
    }
    with application(local, tmp_path, f"lambda-raising-{language}", shards=1) as app:
        app.put(1)
        number = put_poison(app, "poison 1")
        app.put(1)
        with app.daemon(command(language, tmp_path, "app.raising"), more) as daemon:
            wait_until(lambda: app.stored(app.last_written), daemon.tail)
            failed = daemon.named("child_failed")
            said = [
                event["line"]
                for event in daemon.named("child_stderr")
                if "cannot read 'poison" in event["line"]
            ]
            daemon.stop()
    (letter,) = letters(dead)
    assert letter["sequenceNumber"] == number
    assert len(said) == len(failed) > 0, "one traceback for each process that failed"


# Windows


def window_of(record: dict[str, Any], length_s: int) -> int:
    return int(record["kinesis"]["approximateArrivalTimestamp"]) // length_s * length_s


def assert_sums(folder: Path, length_s: int, count: int) -> None:
    """The last state of each window counts the records that arrived in it, each once."""
    events = [each["event"] for each in noted(folder)]
    by_number = {
        record["kinesis"]["sequenceNumber"]: window_of(record, length_s)
        for event in events
        for record in event["Records"]
    }
    assert len(by_number) == count
    sums = {
        event["window"]["start"]: event["state"]["count"]
        for event in events
        if event["isFinalInvokeForWindow"]
    }
    assert sorted(sums.values()) == sorted(
        [list(by_number.values()).count(window) for window in set(by_number.values())]
    )
    for event in events:
        assert_event(event, is_windowed=True)


def test_a_window_through_a_kill_has_the_right_sum_when_its_shard_ends(
    local: Local, tmp_path: Path, language: str
) -> None:
    length_s = 600
    program = command(language, tmp_path, "app.window", f"--tumbling-window {length_s}")
    with application(local, tmp_path, f"lambda-killed-{language}", shards=1) as app:
        app.put(5)
        with app.daemon(program, {**QUICK, **QUICKLY_AGAIN}) as daemon:
            child = daemon.wait_for("child_started")
            wait_until(lambda: len(seen(tmp_path)) == 5, daemon.tail)
            os.kill(child["pid"], signal.SIGKILL)
            daemon.wait_for("child_started", times=2)
            app.put(5)
            wait_until(lambda: len(seen(tmp_path)) == 15, daemon.tail)  # the five come again
            split(app, SHARD, open_then=2)
            wait_until(lambda: is_finished(app, SHARD), daemon.tail)
            assert len(daemon.named("child_failed")) == 1
            daemon.stop()
    assert_sums(tmp_path, length_s, 10)


def test_a_window_ends_by_time_where_no_more_records_come(
    local: Local, tmp_path: Path, language: str
) -> None:
    program = command(language, tmp_path, "app.window", "--tumbling-window 1")
    with application(local, tmp_path, f"lambda-quiet-{language}", shards=1) as app:
        app.put(5)
        more = {**QUICK, "callProcessRecordsEvenForEmptyRecordList": "true"}
        with app.daemon(program, more) as daemon:
            wait_until(lambda: app.stored(app.last_written), daemon.tail)
            daemon.stop()
            assert not daemon.named("child_failed")
    assert_sums(tmp_path, 1, 5)


def test_a_stop_in_a_window_checkpoints_nothing_of_it(local: Local, tmp_path: Path, language: str) -> None:
    program = command(language, tmp_path, "app.window", "--tumbling-window 600")
    with application(local, tmp_path, f"lambda-stopped-{language}", shards=1) as app:
        app.put(5)
        with app.daemon(program, QUICK) as daemon:
            wait_until(lambda: len(seen(tmp_path)) == 5, daemon.tail)
            daemon.stop()
            assert not daemon.named("child_failed")
        assert app.rows()[SHARD]["checkpoint"].get("S") == "TRIM_HORIZON"


# One conversation, both languages


def record(number: int, arrival_ms: int = NOON_MS, data: bytes = b"1", sub: int = 0) -> Record:
    return Record(base64.b64encode(data).decode(), f"kéy {number}", str(NUMBER + number), arrival_ms, sub)


def batch(*records: Record, behind_ms: int | None = 0) -> ProcessRecords:
    return ProcessRecords(list(records), behind_ms)


_LARGE: Final = b"x" * 700_000
CONVERSATIONS: Final[dict[str, tuple[str, Sequence[Action]]]] = {
    "batches": (
        "app.seen",
        (
            batch(record(1, NOON_MS + 250), record(2, NOON_MS + 987, b"\xff\x00")),
            batch(behind_ms=None),
            batch(record(3, sub=0), record(3, sub=1), record(4, data=b"")),
            batch(record(5), replace(record(6), partition_key=None), record(7)),
            ShutdownRequested(),
            LeaseLost(),
        ),
    ),
    "failures": ("app.partial", (batch(record(1), record(2, data=b"poison"), record(3)),)),
    "failure of the first": ("app.partial", (batch(record(1, data=b"poison"), record(2)),)),
    "raising": ("app.raising", (batch(record(1)), batch(record(2, data=b"poison")))),
    "windows": (
        "--tumbling-window 60 app.window",
        (
            batch(record(1), record(2, NOON_MS + 59_999), record(3, NOON_MS + 60_000)),
            batch(record(4, NOON_MS + 500), record(5, NOON_MS + 200_000)),
            batch(behind_ms=40),
            batch(),
            batch(record(6, NOON_MS + 200_001)),
            ShardEnded(),
        ),
    ),
    "large state": (
        "--tumbling-window 60 app.window",
        (batch(record(1, data=_LARGE)), batch(record(2, data=_LARGE)), batch(record(3)), LeaseLost()),
    ),
    "no state": ("--tumbling-window 60 app.seen", (batch(record(1)),)),
}


def said_and_seen(
    language: str, folder: Path, name: str
) -> tuple[list[list[str]], list[dict[str, Any]], int]:
    folder.mkdir()
    handler, actions = CONVERSATIONS[name]
    program = command(language, folder, handler, f"--stream-arn {ARN}")
    with talk(program) as processor:
        said = [
            processor.perform(each)
            for each in (Initialize("shardId-000000000007", "TRIM_HORIZON", 0), *actions)
        ]
        code, _ = processor.finish()
    return said, [each["event"] for each in noted(folder)], code


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_the_same_records_are_the_same_events_in_both_languages(name: str, tmp_path: Path) -> None:
    is_there("node")
    python, node = (said_and_seen(each, tmp_path / each, name) for each in RUNNERS)
    assert python == node
    said, events, code = python
    assert events and said[0] == ["ok"]
    assert code == (0 if all("exit 70" not in each for each in said) else 70)
    for event in events:
        assert_event(event, is_windowed="window" in event)


# Node alone


@pytest.mark.parametrize(
    "handler",
    [
        "callback",
        "callbackLater",
        "callbackFirst",
        "callbackAtOnce",
        "done",
        "succeed",
        "nothing",
        "inside.handler",
    ],
)
def test_every_way_to_end_an_invocation_well(handler: str, tmp_path: Path) -> None:
    is_there("node")
    with talk(command("node", tmp_path, f"app.{handler}")) as processor:
        assert processor.perform(Initialize("shardId-000000000007", "TRIM_HORIZON", 0)) == ["ok"]
        assert processor.perform(batch(record(1))) == ["ckpt", "ok"]
        notes = len(noted(tmp_path))
        assert processor.perform(batch(record(2)), "ThrottlingException", None) == ["ckpt", "ckpt", "ok"]
        assert processor.perform(batch(record(3)), "ShutdownException") == ["ckpt", "ok"]
        assert processor.finish()[0] == 0
    assert notes == (handler in {"callbackFirst", "nothing"}), "what was begun is done before the checkpoint"


@pytest.mark.parametrize("handler", ["callbackFails", "fails", "throws", "never"])
def test_every_way_to_fail(handler: str, tmp_path: Path) -> None:
    is_there("node")
    with talk(command("node", tmp_path, f"app.{handler}")) as processor:
        assert processor.perform(Initialize("shardId-000000000007", "TRIM_HORIZON", 0)) == ["ok"]
        assert processor.perform(batch(record(1))) == ["exit 70"]
        assert processor.finish()[1].count("as told") == 1


def test_modules_of_both_kinds_in_folders(tmp_path: Path) -> None:
    is_there("node")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "app.mjs").write_text(
        "export const handler = async () => { console.log('in a module'); };\n"
    )
    with talk(command("node", tmp_path, "src/app.handler")) as processor:
        assert processor.perform(Initialize("shardId-000000000007", "TRIM_HORIZON", 0)) == ["ok"]
        assert processor.perform(batch(record(1))) == ["ckpt", "ok"]
        assert "in a module" in processor.finish()[1]


@pytest.mark.parametrize(
    ("words", "source", "said"),
    [
        ("a.handler", None, "there is no "),
        ("a", None, "must be MODULE.FUNCTION, such as app.handler"),
        ("a.handler", "exports.other = 1;\n", "a.js has no function"),
        ("a.handler", "\nrequire('no-such-module');\n", "a.js:2: Error: Cannot find module 'no-such-module'"),
        ("a.handler", "\n\nexports.handler = (;\n", "a.js:3: SyntaxError"),
        ("a.handler", "\nthrow new TypeError('as told');\n", "a.js:2: TypeError: as told"),
        ("--tumbling-window 901 a.handler", "", "1 to 900 seconds"),
        ("--timeout 0 a.handler", "", "--timeout must be above 0"),
        ("--attempts many a.handler", "", "--attempts must be at least 0"),
        ("--stream-arn orders a.handler", "", "not the ARN of a stream"),
        ("--nonsense a.handler", "", "--nonsense"),
    ],
)
def test_a_handler_that_cannot_be_run_is_explained_with_file_and_line(
    words: str, source: str | None, said: str, tmp_path: Path
) -> None:
    is_there("node")
    if source is not None:
        (tmp_path / "a.js").write_text(source)
    ran = subprocess.run(
        [*RUNNERS["node"].split(), *words.split()],
        cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (2, "")
    (line,) = ran.stderr.splitlines()
    assert said in line


# A table of DynamoDB


def test_changes_of_a_table_come_as_lambda_gives_them(tmp_path: Path, language: str) -> None:
    with table(tmp_path, StreamsOptions()) as it:
        it.write(ITEMS)
        environment = {
            **it.app.local.environment,
            **{f"AWS_ENDPOINT_URL_DYNAMODB{end}": it.app.local.dynamodb_url for end in ("", "_STREAMS")},
        }
        more = {**QUICK, "tableName.source": TABLE, "childRecordFormat": "lambda"}
        file = it.app.write_properties("worker", command(language, tmp_path, "app.changes"), more)
        text = (tmp_path / file).read_text()
        (tmp_path / file).write_text(
            "".join(each for each in text.splitlines(True) if "streamName" not in each)
        )
        written = tmp_path / "changes.jsonl"
        with run_daemon(tmp_path, "--properties", file, environment=environment) as daemon:
            wait_until(
                lambda: written.exists() and len(written.read_text().splitlines()) == ITEMS, daemon.tail
            )
            daemon.stop()
        assert not daemon.named("child_failed")
        arn = it.model.stream(TABLE).arn
    changes = [json.loads(line) for line in written.read_text().splitlines()]
    assert {each["eventSourceARN"] for each in changes} == {arn}
    assert {each["eventName"] for each in changes} == {"INSERT"}
    assert {each["dynamodb"]["NewImage"]["version"]["N"] for each in changes} == {"1"}


# What AWS publishes


def run_published(
    app: Application, folder: Path, program: str, *, poison: bool
) -> tuple[list[str], list[dict[str, Any]]]:
    """Nine records, one of them poison where that is wanted; what was said, and the letters."""
    dead = folder / "dead.jsonl"
    app.put(4)
    number = put_poison(app, "poison 1") if poison else ""
    app.put(4)
    with app.daemon(program, {**QUICK, "deadLetterDestination": f"file:{dead}"}) as daemon:
        wait_until(lambda: app.stored(app.last_written), daemon.tail)
        daemon.stop()
        assert not daemon.named("child_failed")
        assert not daemon.named("child_stray_output")
    assert [each["sequenceNumber"] for each in letters(dead)] == ([number] if poison else [])
    return [event["line"] for event in daemon.named("child_stderr")], letters(dead)


def test_a_batch_processor_of_powertools_runs_unchanged(local: Local, tmp_path: Path, language: str) -> None:
    end = ENDS[language]
    shutil.copy(PROCESSORS / f"lambda_powertools.{end}", tmp_path / f"app.{end}")
    if language == "node":
        (tmp_path / "node_modules").symlink_to(powertools_for_node())
        around = ""
    else:
        around = f"env PYTHONPATH={powertools()} "
    with application(local, tmp_path, f"lambda-powertools-{language}", shards=1) as app:
        run_published(app, tmp_path, f"{around}{RUNNERS[language]} --reject-named app.handler", poison=True)
    processed = (tmp_path / "processed.txt").read_text().split()
    assert len(processed) == len(set(processed)) == 8
    assert all(int(before) < int(after) for before, after in pairwise(processed))


@dataclass(frozen=True, slots=True)
class Sample:
    """One of AWS's, and how often it says what its records are."""

    language: str
    file: str
    handler: str
    said: int


SAMPLES: Final = (
    Sample("python", "integration-kinesis-to-lambda/main.py", "lambda_handler", 8),
    Sample("python", "integration-kinesis-to-lambda-with-batch-item-handling/example.py", "handler", 0),
    Sample("node", "integration-kinesis-to-lambda/example.js", "handler", 8),
    Sample("node", "integration-kinesis-to-lambda-with-batch-item-handling/example.js", "handler", 8),
)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.file)
def test_the_sample_handlers_of_aws_run_as_they_are(sample: Sample, local: Local, tmp_path: Path) -> None:
    is_there(sample.language)
    shutil.copy(serverless_snippets() / sample.file, tmp_path / f"app.{ENDS[sample.language]}")
    name = re.sub(r"[^a-z]+", "-", f"lambda-{sample.file}")
    with application(local, tmp_path, name, shards=1) as app:
        program = f"{RUNNERS[sample.language]} app.{sample.handler}"
        lines, _ = run_published(app, tmp_path, program, poison=False)
    assert lines.count("Record Data: a record") == sample.said
