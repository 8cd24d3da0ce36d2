"""Real daemons on a stream of a test's own, with the account of every record. Shared by the tests of whole daemons.

Waiting is always for a condition, with a deadline: one for hangs, far beyond what a machine that stood still for a while
needs. How quick something is, is no matter of these tests (`tests/benchmarks` tells it, in virtual time). What runs in an application's directory is gone at the end of it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Condition, Event, Thread
from typing import TYPE_CHECKING, Any, Final

import psutil

from kcl_local.demo.check import DIRECTORY_VARIABLE, Checker, LedgerEntry, LedgerReader, monotonic_s
from tests.process.forked import ForkedProcess, fork_daemon
from tests.process.local import Local, dynamodb_client, kinesis_client

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_dynamodb.type_defs import AttributeValueTypeDef
    from mypy_boto3_kinesis import KinesisClient
    from mypy_boto3_kinesis.type_defs import PutRecordsRequestEntryTypeDef, ShardTypeDef

ROOT: Final = Path(__file__).parents[2]
PROCESSORS: Final = f"{sys.executable} -m tests.process.processors"
WITHIN_S: Final = 90.0
END_WITHIN_S: Final = 60.0
GONE_WITHIN_S: Final = 60.0
# Looking costs a call of the endpoints or more: less and less often.
POLL_S: Final = 0.02
POLL_MOST_S: Final = 0.2
# A third of the fail-over time is what a call on a lease may take, and all of it what a daemon may stand still without losing
# its leases: less than this is too little on a busy machine for tests in which nothing may come twice.
FAILOVER_MS: Final = 6000


def wait_until(holds: Callable[[], bool], what: str | Callable[[], str], within_s: float = WITHIN_S) -> float:
    """Wait for a condition; the seconds that took. AssertionError at the deadline, saying what was waited for."""
    pause, pause_s, began_s = Event(), POLL_S, monotonic_s()
    while not holds():
        if monotonic_s() - began_s > within_s:
            raise AssertionError(f"not within {within_s:g} s: {what if isinstance(what, str) else what()}")
        pause.wait(pause_s)
        pause_s = min(pause_s * 1.2, POLL_MOST_S)
    return monotonic_s() - began_s


@contextmanager
def again_and_again(act: Callable[[], object], every_s: float) -> Generator[None]:
    """Do something now and then, in a thread, while the block lasts; its first error ends that, and is raised at the end."""
    stop, errors = Event(), list[Exception]()

    def repeat() -> None:
        try:
            while not stop.wait(every_s):
                act()
        except Exception as error:  # noqa: BLE001 - told by the main thread
            errors.append(error)

    thread = Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if errors:
        raise errors[0]


def value_of(row: Mapping[str, AttributeValueTypeDef], name: str) -> str:
    """The text that stands under a name in a row, or the number, as DynamoDB writes it."""
    attribute = row[name]
    found = attribute.get("S", attribute.get("N"))
    assert found is not None, f"{name} is neither text nor a number: {attribute}"
    return found


def processes_in(directory: Path) -> list[psutil.Process]:
    """Everything that runs in this directory, whoever its parent is."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(directory):
                found.append(process)
        except psutil.Error:
            continue
    return found


class Daemon:
    """A running daemon and what it has said."""

    def __init__(self, process: subprocess.Popen[str] | ForkedProcess, started_s: float) -> None:
        self.process = process
        self.started_s = started_s
        self.plain_lines: list[str] = []
        self._events: list[dict[str, Any]] = []
        self._assignment_epoch = Condition()
        self._is_closed = False
        self._may_end = False
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._assignment_epoch:
                if line.startswith("{"):
                    self._events.append(json.loads(line))
                else:
                    self.plain_lines.append(line.rstrip("\n"))
                self._assignment_epoch.notify_all()
        with self._assignment_epoch:
            self._is_closed = True
            self._assignment_epoch.notify_all()

    def named(self, event: str, **fields: object) -> list[dict[str, Any]]:
        """All events so far with this name and these fields."""
        with self._assignment_epoch:
            return self._named(event, fields)

    @property
    def lines(self) -> int:
        """How many it has said so far."""
        with self._assignment_epoch:
            return len(self._events) + len(self.plain_lines)

    def loud(self) -> list[dict[str, Any]]:
        """Every warning and error so far, but that a time is short: tests ask for that."""
        levels = {"warning", "error", "critical"}
        with self._assignment_epoch:
            loud = [each for each in self._events if each["level"] in levels]
        return [each for each in loud if each["event"] != "time_unit_doubtful"]

    def _named(self, event: str, fields: Mapping[str, object]) -> list[dict[str, Any]]:
        return [each for each in self._events if each["event"] == event and fields.items() <= each.items()]

    def wait_for(
        self, event: str, *, times: int = 1, within_s: float = WITHIN_S, **fields: object
    ) -> dict[str, Any]:
        """Wait until so many of these events have come; the last of them."""
        with self._assignment_epoch:
            done = self._assignment_epoch.wait_for(
                lambda: len(self._named(event, fields)) >= times or self._is_closed, within_s
            )
            found = self._named(event, fields)
            assert done and len(found) >= times, f"{len(found)} {event} {fields}:\n{self.tail()}"
            return found[times - 1]

    def tail(self) -> str:
        """Its last words, for a message."""
        return "\n".join([*self.plain_lines[-5:], *map(str, self._events[-25:])])

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def end(self, within_s: float = END_WITHIN_S) -> int:
        """Wait for its end and read all it said; the exit code."""
        self._may_end = True
        try:
            code = self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it runs on after {within_s:g} s:\n{self.tail()}") from None
        self._reader.join(within_s)
        return code

    def assert_running(self) -> None:
        """It has not ended, or somebody has waited for that."""
        assert self._may_end or self.process.poll() is None, f"it ended by itself:\n{self.tail()}"

    def stop(self) -> None:
        """SIGTERM; it must end well."""
        self.signal(signal.SIGTERM)
        assert self.end() == 0, self.tail()
        assert self.named("daemon_stopped")
        assert not self.named("consumer_crashed")

    def close(self) -> None:
        """Kill it if it still runs, and close the pipes."""
        self.process.kill()
        self.process.wait(GONE_WITHIN_S)
        self._reader.join(GONE_WITHIN_S)
        assert not self.named("invariant_violated"), self.tail()


@contextmanager
def run_daemon(
    directory: Path,
    *words: str,
    environment: Mapping[str, str],
    fresh: bool = False,
    python: str = sys.executable,
) -> Generator[Daemon]:
    """The program as a process in a directory; killed at the end of the block.

    `fresh`: started by its command, for those who measure time or memory; else forked, which takes a sixth of the CPU.
    `python`: of another environment, with another version; always started by its command.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    whole = {
        **kept,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), kept.get("PYTHONPATH")))),
        "AWS_EC2_METADATA_DISABLED": "true",
        "XDG_STATE_HOME": str(directory / "state"),
        **environment,
    }
    started_s = monotonic_s()
    is_other = python != sys.executable
    start = partial(_start_by_command, python) if fresh or is_other else fork_daemon
    with start(words, directory, whole) as process:
        daemon = Daemon(process, started_s)
        try:
            yield daemon
        finally:
            daemon.close()


def _start_by_command(
    python: str, words: Sequence[str], directory: Path, environment: Mapping[str, str]
) -> subprocess.Popen[str] | ForkedProcess:
    return subprocess.Popen(
        [python, "-W", "error", "-m", "kcl_daemon", *words],
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


@dataclass(eq=False)
class Application:
    """One application on a stream of its own, both of the same name.

    Attributes:
        ledgers: every entry of a ledger so far, with the worker whose child wrote it.
        checker: the account of what was put and what was delivered.
    """

    name: str
    directory: Path
    local: Local
    kinesis: KinesisClient
    dynamodb: DynamoDBClient
    checker: Checker = field(default_factory=Checker)
    ledgers: list[tuple[str, LedgerEntry]] = field(default_factory=list[tuple[str, LedgerEntry]])
    last_written: dict[str, str] = field(default_factory=dict[str, str])
    _daemons: list[Daemon] = field(default_factory=list[Daemon])
    _readers: dict[str, LedgerReader] = field(default_factory=dict[str, LedgerReader])

    def create_stream(self, shards: int) -> None:
        """Create the stream and wait until it is ACTIVE."""
        self.kinesis.create_stream(StreamName=self.name, ShardCount=shards)
        wait_until(self._is_active, "the stream is ACTIVE")

    def delete_stream(self) -> None:
        """Another one of its name is created in another second, and so told apart: such times are in whole ones."""
        self.kinesis.delete_stream(StreamName=self.name, EnforceConsumerDeletion=True)
        deleted_s = monotonic_s()
        wait_until(lambda: monotonic_s() > deleted_s + 1, "a second later")

    def _is_active(self) -> bool:
        answer = self.kinesis.describe_stream_summary(StreamName=self.name)
        return answer["StreamDescriptionSummary"]["StreamStatus"] == "ACTIVE"

    def shards(self) -> list[ShardTypeDef]:
        """Its shards."""
        return self.kinesis.list_shards(StreamName=self.name)["Shards"]

    def put(self, each: int = 1, *, but: str = "") -> None:
        """Write so many records into each open shard, but for one."""
        for shard in self.shards():
            if shard["ShardId"] != but and "EndingSequenceNumber" not in shard["SequenceNumberRange"]:
                self._put(shard, each)

    def _put(self, shard: ShardTypeDef, count: int) -> None:
        record: PutRecordsRequestEntryTypeDef = {
            "Data": b"a record",
            "PartitionKey": "key",
            "ExplicitHashKey": shard["HashKeyRange"]["StartingHashKey"],
        }
        answer = self.kinesis.put_records(StreamName=self.name, Records=[record] * count)
        for result in answer["Records"]:
            shard_id, number = result.get("ShardId", ""), result.get("SequenceNumber", "")
            if shard_id != shard["ShardId"]:  # it was split or merged since it was listed
                shard = next(each for each in self.shards() if each["ShardId"] == shard_id)
            self._known(shard)
            self.checker.wrote(shard_id, number, {})
            self.last_written[shard_id] = number

    def _known(self, shard: ShardTypeDef) -> None:
        above = (shard.get("ParentShardId"), shard.get("AdjacentParentShardId"))
        self.checker.lineage(shard["ShardId"], parents=tuple(filter(None, above)), is_open=True)

    def write_properties(self, worker: str, executable: str, more: Mapping[str, object] | None = None) -> str:
        """Write the properties file of a worker; its name."""
        values: dict[str, object] = {
            **({"executableName": executable} if executable else {}),
            "streamName": self.name,
            "applicationName": self.name,
            "workerId": worker,
            "regionName": "us-east-1",
            "initialPositionInStream": "TRIM_HORIZON",
            "kinesisEndpoint": self.local.kinesis_url,
            "dynamoDBEndpoint": self.local.dynamodb_url,
            "metricsLevel": "NONE",  # the endpoint would count them all
            **(more or {}),
        }
        path = self.directory / f"{worker}.properties"
        path.write_text("".join(f"{key} = {value}\n" for key, value in values.items()), "ascii")
        return path.name

    @contextmanager
    def daemon(
        self,
        executable: str,
        more: Mapping[str, object] | None = None,
        *,
        worker: str = "worker",
        fresh: bool = False,
        python: str = sys.executable,
        variables: Mapping[str, str] | None = None,
    ) -> Generator[Daemon]:
        """A daemon of this application, with these variables, while the block lasts; the rest as with `run_daemon`."""
        file = self.write_properties(worker, executable, more)
        ledgers = self.directory / "ledgers" / worker
        ledgers.mkdir(parents=True, exist_ok=True)
        self._readers.setdefault(worker, LedgerReader(ledgers))
        environment = {**self.local.environment, DIRECTORY_VARIABLE: str(ledgers), **(variables or {})}
        words = ("--properties", file)
        with run_daemon(
            self.directory, *words, environment=environment, fresh=fresh, python=python
        ) as daemon:
            self._daemons.append(daemon)
            yield daemon

    def poll(self) -> None:
        """Bring the account up to date; AssertionError where a daemon has ended meanwhile."""
        for daemon in self._daemons:
            daemon.assert_running()
        for worker, reader in self._readers.items():
            for entry in reader.new_entries():
                self.ledgers.append((worker, entry))
                self.checker.reported(entry)

    def delivered(self, shard_ids: Iterable[str]) -> bool:
        """Whether these shards have nothing left to deliver."""
        self.poll()
        behind = {shard.shard_id: shard.behind for shard in self.checker.progress()}
        return all(behind.get(shard_id, 0) == 0 for shard_id in shard_ids)

    def stored(self, shard_ids: Iterable[str]) -> bool:
        """Whether everything written to these shards has been checkpointed."""
        rows = self.rows()
        return all(
            rows.get(shard_id, {}).get("checkpoint", {}).get("S") == self.last_written[shard_id]
            for shard_id in shard_ids
        )

    def wait_done(self, shard_ids: Iterable[str] | None = None, within_s: float = WITHIN_S) -> None:
        """Wait until every record of these shards, of all by default, has been delivered and checkpointed."""
        wanted = list(self.last_written if shard_ids is None else shard_ids)
        wait_until(lambda: self.delivered(wanted), f"{wanted} are delivered", within_s)
        wait_until(lambda: self.stored(wanted), f"{wanted} are checkpointed", within_s)

    def all_tables(self) -> list[str]:
        """The names of all tables, of this application and of all others: more than fit on one page."""
        pages = self.dynamodb.get_paginator("list_tables").paginate()
        return [name for page in pages for name in page["TableNames"]]

    def rows(self) -> dict[str, dict[str, AttributeValueTypeDef]]:
        """The rows of the lease table, by key; none while there is no table."""
        try:
            items = self.dynamodb.scan(TableName=self.name, ConsistentRead=True)["Items"]
        except self.dynamodb.exceptions.ResourceNotFoundException:
            return {}
        return {item["leaseKey"].get("S", ""): item for item in items}

    def owners(self) -> dict[str, str | None]:
        """Who owns which shard; None: nobody. A single table has other rows, too."""
        leases = {key: row for key, row in self.rows().items() if "leaseCounter" in row}
        return {key: row.get("leaseOwner", {}).get("S") for key, row in leases.items()}

    def incarnations(self, shard_id: str) -> int:
        """How many children have begun with this shard."""
        self.poll()
        return sum(entry.kind == "start" and entry.shard_id == shard_id for _, entry in self.ledgers)

    def assert_account(self, *, repeated: int | None = None) -> None:
        """Nothing lost, unknown or out of order; and so many records delivered more than once, where that is told."""
        self.poll()
        verdict = self.checker.verdict()
        assert verdict.is_right, verdict
        assert repeated is None or verdict.repeated == repeated, verdict


@contextmanager
def application(local: Local, directory: Path, name: str, *, shards: int) -> Generator[Application]:
    """An application with an ACTIVE stream (none where `shards` is 0); at its end nothing may run in its directory."""
    with kinesis_client(local.kinesis_url) as kinesis, dynamodb_client(local.dynamodb_url) as dynamodb:
        made = Application(name, directory, local, kinesis, dynamodb)
        if shards:
            made.create_stream(shards)
        yield made
    _, alive = psutil.wait_procs(processes_in(directory), timeout=GONE_WITHIN_S)
    assert alive == []
