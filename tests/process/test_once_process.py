"""Real daemons, children and a database in a file: whoever is killed or stopped in the middle, each record is stored once."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Iterable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Final

import psutil
import pytest

from kcl_client.once import Reader, SqliteStore
from kcl_protocol.sequence import ExtendedSequenceNumber
from tests.process.daemon import (
    FAILOVER_MS,
    PROCESSORS,
    Application,
    Daemon,
    application,
    value_of,
    wait_until,
)
from tests.process.local import Local

if TYPE_CHECKING:
    from mypy_boto3_kinesis.type_defs import PutRecordsRequestEntryTypeDef

pytestmark = pytest.mark.timeout(300)

BANK: Final = f"{PROCESSORS}.bank"
SHARD: Final = "shardId-000000000000"
QUICK: Final = {
    "idleTimeBetweenReadsInMillis": 200,
    "childRestartBackoffMillis": 20,
    "childRestartBackoffMaxMillis": 100,
    "maxRecords": 20,
    "failoverTimeMillis": FAILOVER_MS,
}


def put(app: Application, numbers: Iterable[int]) -> None:
    records: list[PutRecordsRequestEntryTypeDef] = [
        {"Data": str(number).encode(), "PartitionKey": f"key {number % 7}"} for number in numbers
    ]
    app.kinesis.put_records(StreamName=app.name, Records=records)


def bank_of(app: Application) -> Path:
    folder = app.directory / "ledgers"
    folder.mkdir(exist_ok=True)
    with closing(sqlite3.connect(folder / "bank.db")) as database:
        database.execute("CREATE TABLE IF NOT EXISTS transfers (number integer, pid integer)")
    return folder / "bank.db"


def stored(bank: Path) -> tuple[int, int]:
    """How many rows there are, and for how many records."""
    with closing(sqlite3.connect(bank, timeout=60)) as database:
        rows, records = database.execute("SELECT count(*), count(DISTINCT number) FROM transfers").fetchone()
        return rows, records


def is_beyond(bank: Path, rows: int) -> bool:
    return stored(bank)[0] > rows


def last_child(bank: Path) -> psutil.Process:
    with closing(sqlite3.connect(bank, timeout=60)) as database:
        (pid,) = database.execute("SELECT pid FROM transfers ORDER BY rowid DESC LIMIT 1").fetchone()
        return psutil.Process(pid)


def test_children_and_daemons_are_killed_and_each_record_is_stored_once(local: Local, tmp_path: Path) -> None:
    with application(local, tmp_path, "once-killed", shards=1) as app:
        bank, more = bank_of(app), iter(range(400, 500))
        put(app, range(400))
        with app.daemon(BANK, QUICK) as daemon:
            for killed in range(3):
                before = stored(bank)[0]
                wait_until(partial(is_beyond, bank, before + 20), "it goes on")
                last_child(bank).kill()
                daemon.wait_for("child_failed", times=killed + 1)
            wait_until(partial(is_beyond, bank, stored(bank)[0]), "the next child stores")
            while not is_stopped_ahead(daemon, bank):
                put(app, [next(more)])
            daemon.signal(signal.SIGKILL)
            daemon.end()
        put(app, more)
        with app.daemon(BANK, QUICK, worker="another") as daemon:
            wait_until(lambda: stored(bank)[0] >= 500, lambda: f"all are stored: {stored(bank)}")
            daemon.wait_for("child_begins_by_itself")
            wait_until(lambda: is_checkpointed(app, bank), "the lease follows")
            daemon.stop()
        assert stored(bank) == (500, 500)


def is_stopped_ahead(daemon: Daemon, bank: Path) -> bool:
    """Whether the daemon is now stopped and the child has stored a batch that the lease does not know of; else it runs on."""
    child = last_child(bank)
    child.suspend()
    Event().wait(1)  # meanwhile the daemon sends a batch
    before = stored(bank)[0]
    daemon.signal(signal.SIGSTOP)
    child.resume()
    with suppress(AssertionError):
        wait_until(partial(is_beyond, bank, before), "it stores the batch", within_s=3)
        return True
    daemon.signal(signal.SIGCONT)
    return False


def is_checkpointed(app: Application, bank: Path) -> bool:
    with closing(sqlite3.connect(bank, timeout=60)) as database:
        (number,) = database.execute("SELECT sequence_number FROM kcl_once").fetchone()
        return app.rows()[SHARD]["checkpoint"].get("S") == str(number)


def test_a_worker_that_sleeps_beyond_its_lease_writes_nothing_when_it_wakes(
    local: Local, tmp_path: Path
) -> None:
    with application(local, tmp_path, "once-asleep", shards=1) as app:
        bank = bank_of(app)
        put(app, range(100))
        with app.daemon(BANK, QUICK, worker="sleeper") as sleeper:
            wait_until(lambda: stored(bank)[0] == 100, "all are stored")
            token = value_of(app.rows()[SHARD], "daemonFence")
            child = last_child(bank)
            child.suspend()
            sleeper.signal(signal.SIGSTOP)
            put(app, range(100, 200))
            with app.daemon(BANK, QUICK, worker="successor") as successor:
                wait_until(lambda: stored(bank)[0] == 200, "the other worker has taken over")
                assert int(value_of(app.rows()[SHARD], "daemonFence")) > int(token)
                sleeper.signal(signal.SIGCONT)
                child.resume()
                put(app, range(200, 300))
                wait_until(lambda: stored(bank)[0] >= 300, "all are stored")
                sleeper.wait_for("lease_lost")
                successor.stop()
            sleeper.stop()
        assert stored(bank) == (300, 300)


def test_a_position_that_is_of_no_record_here_stops_the_shard_with_words(
    local: Local, tmp_path: Path
) -> None:
    with application(local, tmp_path, "once-wrong", shards=1) as app:
        bank = bank_of(app)
        put(app, range(10))
        with closing(SqliteStore(bank, application="bank")) as store:
            reader = Reader("bank", "", SHARD, 1)
            store.begin(reader)
            store.commit(reader, None, ExtendedSequenceNumber("4965"), lambda cursor: None)
        with app.daemon(BANK, QUICK) as daemon:
            event = daemon.wait_for("child_position_refused", times=2)
            assert "'4965'" in event["error"]
            assert "own store" in event["advice"]
            with closing(sqlite3.connect(bank, timeout=60, isolation_level=None)) as database:
                database.execute("DELETE FROM kcl_once")
            wait_until(lambda: stored(bank)[0] == 10, "it goes on by itself once the position is gone")
            daemon.stop()
        assert stored(bank) == (10, 10)
