"""Jobs that end: `runUntil` with whole daemons, and `kcl-daemon replay` beside a live application."""

from __future__ import annotations

import signal
import time  # the stream's dates are real
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Final

import pytest

from kcl_local.demo.check import DIRECTORY_VARIABLE
from tests.process.daemon import (
    FAILOVER_MS,
    PROCESSORS,
    Application,
    Daemon,
    again_and_again,
    application,
    run_daemon,
    value_of,
    wait_until,
)
from tests.process.local import Local, local_process

CAREFUL: Final = f"{PROCESSORS}.careful"
WRITING: Final = f"{PROCESSORS}.writing"
POLLED: Final = {
    "retrievalMode": "POLLING",
    "idleTimeBetweenReadsInMillis": 200,
    "failoverTimeMillis": FAILOVER_MS,
}
EACH: Final = 40


@pytest.fixture(scope="module")
def local() -> Generator[Local]:
    with local_process() as endpoints:
        yield endpoints


def now_s() -> float:
    return time.time()  # noqa: TID251 - the stream's date


def outputs(directory: Path) -> dict[str, list[bytes]]:
    return {path.name: path.read_bytes().splitlines() for path in sorted(directory.glob("shardId-*"))}


def put(app: Application, words: str) -> None:
    """Some records into each shard, each with data of its own."""
    for shard in app.shards():
        app.kinesis.put_records(
            StreamName=app.name,
            Records=[
                {
                    "Data": f"{words} {number}".encode(),
                    "PartitionKey": "key",
                    "ExplicitHashKey": shard["HashKeyRange"]["StartingHashKey"],
                }
                for number in range(EACH)
            ],
        )


def pause() -> float:
    """So that dates before and after it are apart; the date between."""
    Event().wait(0.1)
    between_s = now_s()
    Event().wait(0.1)
    return between_s


class Range:
    """A stream with records before, in and after a range, which a live daemon has processed."""

    def __init__(self, app: Application, file: str) -> None:
        self.app = app
        self.file = file
        self.live = app.directory / "ledgers" / "live"
        put(app, "before")
        self.start_s = pause()
        for part in range(3):
            put(app, f"within {part}")
        self.end_s = pause()
        put(app, "after")

    def processed(self) -> bool:
        found = outputs(self.live)
        return len(found) == 2 and all(len(lines) == 5 * EACH for lines in found.values())

    @property
    def wanted(self) -> dict[str, list[bytes]]:
        """What the live daemon has written of the range."""
        return {
            shard: [line for line in lines if b" within " in line]
            for shard, lines in outputs(self.live).items()
        }

    def words(self, *more: str) -> tuple[str, ...]:
        return ("replay", self.file, "--from", f"{self.start_s:.3f}", "--to", f"{self.end_s:.3f}", *more)

    @contextmanager
    def replay(self, out: Path, *more: str) -> Generator[Daemon]:
        out.mkdir(exist_ok=True)
        environment = {**self.app.local.environment, DIRECTORY_VARIABLE: str(out)}
        with run_daemon(self.app.directory, *self.words(*more), environment=environment) as daemon:
            yield daemon

    def tables(self) -> set[str]:
        return {name for name in self.app.all_tables() if name.startswith(self.app.name)}


@contextmanager
def live(local: Local, tmp_path: Path, name: str) -> Generator[Range]:
    with application(local, tmp_path, name, shards=2) as app, app.daemon(WRITING, POLLED, worker="live"):
        made = Range(app, "live.properties")
        wait_until(made.processed, "the live daemon has processed all")
        yield made


def test_two_workers_end_by_themselves_at_the_tip_although_records_keep_coming(
    local: Local, tmp_path: Path
) -> None:
    # Small reads: the run of the first worker must not be over before the second one has begun.
    settings = {**POLLED, "runUntil": "tip", "maxRecords": 5}
    with application(local, tmp_path, "to-the-tip", shards=3) as app:
        app.put(100)
        before = {shard: int(number) for shard, number in app.last_written.items()}
        with (
            again_and_again(app.put, 0.2),
            app.daemon(CAREFUL, settings, worker="one") as one,
            app.daemon(CAREFUL, settings, worker="two") as two,
        ):
            assert (one.end(), two.end()) == (0, 0), one.tail()
            assert one.named("run_ended")
            bound = one.wait_for("run_is_bounded")["until_ms"]
            assert two.wait_for("run_is_bounded")["until_ms"] == bound
        rows = app.rows()
        app.poll()
        assert all(int(value_of(rows[shard], "checkpoint")) >= number for shard, number in before.items())
        assert all(value_of(rows[shard], "daemonReached").startswith(f"{bound} ") for shard in before)
        assert all(
            int(value_of(rows[shard], "checkpoint")) < int(app.last_written[shard]) for shard in before
        )
        app.put(1)
        with app.daemon(CAREFUL, settings, worker="next") as later:
            assert later.end() == 0, later.tail()
        app.wait_done()
        app.assert_account(repeated=0)


def test_a_range_is_replayed_beside_the_live_application(local: Local, tmp_path: Path) -> None:
    with live(local, tmp_path, "replayed") as span:
        tables, owners = span.tables(), span.app.owners()
        checkpoints = {key: row.get("checkpoint") for key, row in span.app.rows().items()}
        with span.replay(tmp_path / "out") as replay:
            assert replay.end() == 0, replay.tail()
        assert outputs(tmp_path / "out") == span.wanted
        assert any("240 records" in line and "2 shards" in line for line in replay.plain_lines), replay.tail()
        assert span.tables() == tables
        assert span.app.owners() == owners
        assert {key: row.get("checkpoint") for key, row in span.app.rows().items()} == checkpoints


def test_one_shard_of_a_range_is_replayed_by_another_program_no_faster_than_the_limit(
    local: Local, tmp_path: Path
) -> None:
    with live(local, tmp_path, "one-shard") as span:
        shard = min(span.wanted)
        began_s = now_s()
        words = ("--shard", shard, "--limit", "20/s", "--", *CAREFUL.split())
        with span.replay(tmp_path / "out", *words) as replay:
            assert replay.end() == 0, replay.tail()
        assert any("120 records" in line and "1 shard," in line for line in replay.plain_lines), replay.tail()
        assert now_s() - began_s > (3 * EACH - 20) / 20 * 0.9


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)], ids=["SIGINT", "SIGKILL"]
)
def test_an_interrupted_replay_goes_on_where_it_was(
    local: Local, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    out = tmp_path / "out"
    with live(local, tmp_path, f"interrupted-{code % 100}") as span:
        with span.replay(out, "--limit", "40/s") as replay:
            wait_until(lambda: any(outputs(out).values()), "some records are replayed")
            replay.signal(number)
            assert replay.end() == code, replay.tail()
            assert number is signal.SIGKILL or any("goes on" in line for line in replay.plain_lines)
        assert outputs(out) != span.wanted
        with span.replay(out) as again:
            assert again.end() == 0, again.tail()
            assert any("goes on" in line for line in again.plain_lines)
        found = {shard: list(dict.fromkeys(lines)) for shard, lines in outputs(out).items()}
        assert found == span.wanted
        if number is signal.SIGINT:
            assert outputs(out) == span.wanted
        assert f"{span.app.name}-replay-default" not in span.tables()


def test_a_second_replay_of_the_same_name_refuses(local: Local, tmp_path: Path) -> None:
    with live(local, tmp_path, "twice") as span:
        with span.replay(tmp_path / "out", "--limit", "8/s") as first:
            wait_until(lambda: any(outputs(tmp_path / "out").values()), "some records are replayed")
            for words in ((), ("--anew",)):
                with span.replay(tmp_path / "other", *words) as second:
                    assert second.end() == 1, second.tail()
                    told = "another process replays under this name"
                    assert any(told in line for line in second.plain_lines)
            assert outputs(tmp_path / "other") == {}
            assert first.end() == 0, first.tail()
        assert outputs(tmp_path / "out") == span.wanted


def test_a_replay_of_a_missing_shard_fails_and_tells_what_is_gone(local: Local, tmp_path: Path) -> None:
    with live(local, tmp_path, "not-there") as span:
        span.start_s = 946_684_800.0
        with span.replay(tmp_path / "out", "--shard", "shardId-7") as replay:
            assert replay.end() == 2, replay.tail()
        assert any("what arrived before" in line and "is gone" in line for line in replay.plain_lines)
        assert any("shardId-7" in event["error"] for event in replay.named("daemon_failed"))
        assert "not-there-replay-default" not in span.tables()


def test_a_table_that_is_not_of_a_replay_is_neither_used_nor_removed(local: Local, tmp_path: Path) -> None:
    with live(local, tmp_path, "foreign") as span:
        name, attribute = "foreign-replay-x", "leaseKey"
        span.app.dynamodb.create_table(
            TableName=name,
            KeySchema=[{"AttributeName": attribute, "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": attribute, "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        span.app.dynamodb.put_item(TableName=name, Item={attribute: {"S": "shardId-000000000000"}})
        for words in ((), ("--anew",)):
            with span.replay(tmp_path / "out", "--name", "x", *words) as replay:
                assert replay.end() == 2, replay.tail()
            assert "is not that of a replay" in replay.named("daemon_failed")[0]["error"]
        assert span.app.dynamodb.scan(TableName=name)["Count"] == 1
