"""A whole worker over one stream in memory, with children that die at certain records, in virtual time."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

import anyio

from kcl_daemon.app import Adapters, build
from kcl_daemon.config.children import (
    ChildSettings,
    FailureSettings,
    PoisonRecordPolicy,
)
from kcl_daemon.config.dead_letters import file_at
from kcl_daemon.config.retrieval import RetrievalSettings
from kcl_daemon.config.settings import Settings
from kcl_daemon.errors import ChildStartFailed, DeadLetterTooLarge, InvalidRequest, Throttled
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.leases.row import RowUpdate, WriteResult
from kcl_daemon.metrics.metric import Metric
from kcl_daemon.metrics.own import VIOLATIONS
from kcl_daemon.ports import ChildLane, NoMeters, StreamRef, Tables
from kcl_daemon.records.dead_letter import DeadLetter
from kcl_daemon.shards.lineage import InitialPosition, StartAt
from kcl_local.kinesis.model import KinesisModel
from kcl_protocol.codec import encode
from kcl_protocol.messages import (
    CheckpointAnswer,
    CheckpointRequest,
    DaemonMessage,
    Initialize,
    ProcessRecords,
    ShardEnded,
    ShutdownRequested,
    Status,
)
from tests.simulator.loop import at_once, run_virtual
from tests.simulator.memory.kinesis import MemoryKinesis
from tests.simulator.memory.table import MemoryTable
from tests.simulator.memory.transactions import MemoryTransactions
from tests.unit.consumer.puppet import Puppet
from tests.unit.fakes import CalmChance, LoopClock, MemoryLog

STREAM: Final = "orders"
POISON: Final = "poison"
DEAD: Final = FailureSettings(
    poison=PoisonRecordPolicy.DEADLETTER,
    dead_letters=file_at("dead.jsonl"),
)
SKIP: Final = FailureSettings(poison=PoisonRecordPolicy.SKIP)


class Leases(MemoryTable):
    """The lease table; `refuses` all checkpoints or none."""

    refuses = False

    async def update(self, update: RowUpdate) -> WriteResult:
        if self.refuses and "checkpoint" in update.put:
            raise Throttled("too many", operation="UpdateItem")
        return await super().update(update)


class MemoryDeadLetters:
    """The place of dead letters; `refusals` of the next calls fail."""

    def __init__(self) -> None:
        self.letters: list[DeadLetter] = []
        self.refusals = 0
        self.most_bytes: int | None = None

    async def store(self, dead_letter: DeadLetter) -> None:
        await anyio.lowlevel.checkpoint()
        if self.refusals:
            self.refusals -= 1
            raise InvalidRequest("too large", operation="SendMessage")
        if self.most_bytes is not None and len(dead_letter.record.data) > self.most_bytes:
            raise DeadLetterTooLarge("too large for the queue: set deadLetterOverflow")
        self.letters.append(dead_letter)


class MemoryEvidence:
    """The Evidence port: files of lines, in memory; none where it `is_full`."""

    def __init__(self) -> None:
        self.files: dict[str, Sequence[Mapping[str, object]]] = {}
        self.is_full = False

    async def keep(self, name: str, lines: Sequence[Mapping[str, object]]) -> str | None:
        await anyio.lowlevel.checkpoint()
        if self.is_full:
            return None
        self.files[name] = lines
        return name


class ViolationCounts(NoMeters):
    """The Meters port, which knows of violations only."""

    def __init__(self) -> None:
        self.violations: list[str] = []

    def add(self, metric: Metric, value: float = 1.0, /, **labels: str) -> None:
        if metric in VIOLATIONS.values():
            self.violations += [dict(metric.fixed)["invariant"]] * int(value)


@dataclass
class Ways:
    """How the children of a stage behave.

    Args:
        dies_at: whether a child dies when it comes to a record with this text.
        status: its exit status then.
        checkpoints: whether it checkpoints each batch, explicitly; else only at its end.
        starts: whether a child can be started at all.
        hangs: whether it falls silent instead of dying.
        frames: the version of frames that a child announces.
    """

    dies_at: Callable[[str], bool] = lambda text: text.startswith(POISON)
    status: int = 3
    checkpoints: bool = True
    starts: bool = True
    hangs: bool = False
    frames: int | None = None


class Reader(Puppet):
    """A child that tells what it was given, and dies where it must."""

    def __init__(self, ways: Ways, seen: list[str]) -> None:
        super().__init__(self._answer_to)
        self._ways = ways
        self._seen = seen
        self._doing = ""

    def _answer_to(self, message: DaemonMessage) -> bytes | None:
        if isinstance(message, CheckpointAnswer):
            if message.error is not None:
                self.end(1)
                return None
            return encode(Status(self._doing))
        self._doing = message.action
        match message:
            case ProcessRecords(records, _):
                for record in records:
                    text = b64decode(record.data).decode()
                    if self._ways.dies_at(text):
                        if not self._ways.hangs:
                            self.end(self._ways.status)
                        return None
                    self._seen.append(text)
                last = records[-1]
                if self._ways.checkpoints:
                    return encode(CheckpointRequest(last.sequence_number, last.sub_sequence_number))
            case ShutdownRequested() | ShardEnded():
                return encode(CheckpointRequest(None, None))
            case _:
                pass
        return encode(Status(message.action, self._ways.frames if isinstance(message, Initialize) else None))


class EarlyReader(Reader):
    """One that answers first and asks for a checkpoint then, as a program with callbacks may."""

    def _answer_to(self, message: DaemonMessage) -> bytes | None:
        answer = super()._answer_to(message)
        if isinstance(message, CheckpointAnswer) and self._doing == ProcessRecords.action:
            return None
        if isinstance(message, ProcessRecords) and answer is not None:
            return encode(Status(message.action)) + answer
        return answer


class TalkativeReader(Reader):
    """One that answers every batch twice, which breaks the protocol after it is done with the records."""

    def _answer_to(self, message: DaemonMessage) -> bytes | None:
        answer = super()._answer_to(message)
        if isinstance(message, CheckpointAnswer) and self._doing == ProcessRecords.action:
            return encode(Status(self._doing)) * 2
        return answer


class LateReader(Reader):
    """One that hangs once the end of its shard is stored."""

    def _answer_to(self, message: DaemonMessage) -> bytes | None:
        if isinstance(message, CheckpointAnswer) and self._doing == ShardEnded.action:
            return None
        return super()._answer_to(message)


class Readers:
    """Port Children.

    Attributes:
        kind: which children it starts.
        seen: the texts of the records that each child was done with.
        lanes: of each child; None: it is the only one of its shard.
        children: that it has started.
    """

    def __init__(self, ways: Ways) -> None:
        self.lanes: list[ChildLane | None] = []
        self.children: list[Reader] = []
        self.ways = ways
        self.kind = Reader
        self.seen: list[list[str]] = []

    async def start(
        self, shard_id: ShardId, stream: StreamRef | None = None, lane: ChildLane | None = None
    ) -> Reader:
        await anyio.lowlevel.checkpoint()
        if not self.ways.starts:
            raise ChildStartFailed("no such program")
        self.seen.append([])
        self.lanes.append(lane)
        self.children.append(self.kind(self.ways, self.seen[-1]))
        return self.children[-1]


@dataclass
class Stage:
    """One worker, one shard."""

    ways: Ways = field(default_factory=Ways)
    failures: FailureSettings = DEAD
    log: MemoryLog = field(default_factory=MemoryLog)
    letters: MemoryDeadLetters = field(default_factory=MemoryDeadLetters)
    evidence: MemoryEvidence = field(default_factory=MemoryEvidence)
    counts: ViolationCounts = field(default_factory=ViolationCounts)
    model: KinesisModel = field(init=False)
    ended_s: float = 0.0

    def __post_init__(self) -> None:
        self.children = Readers(self.ways)
        self.leases = Leases("app", "leaseKey", has_owner_index=True)
        self.tables = Tables(
            self.leases,
            MemoryTable("app-WorkerMetricStats", "wid"),
            MemoryTable("app-CoordinatorState", "key"),
        )
        self.settings = Settings(
            application_name="app",
            stream_name=STREAM,
            child=ChildSettings(("child",)),
            worker_id="worker",
            initial_position=InitialPosition(StartAt.TRIM_HORIZON),
            retrieval=RetrievalSettings(max_records=200, idle_time_between_reads_ms=200),
            failures=self.failures,
        )

    def call(self, operation: str, **arguments: object) -> dict[str, Any]:
        """Kinesis itself."""
        return cast("dict[str, Any]", self.model.handle(operation, arguments))

    def put(self, texts: Iterable[str], key: str = "k\u00fc") -> None:
        """Write records."""
        for text in texts:
            self.put_bytes(text.encode(), key)

    def put_bytes(self, data: bytes, key: str = "k\u00fc") -> None:
        """Write one record."""
        text = b64encode(data).decode()
        self.call("PutRecord", StreamName=STREAM, PartitionKey=key, Data=text)

    def numbers(self) -> list[str]:
        """The sequence numbers of all records of the first shard."""
        shard_id = "shardId-000000000000"
        place = {"StreamName": STREAM, "ShardId": shard_id, "ShardIteratorType": "TRIM_HORIZON"}
        iterator = self.call("GetShardIterator", **place)["ShardIterator"]
        return [
            record["SequenceNumber"] for record in self.call("GetRecords", ShardIterator=iterator)["Records"]
        ]

    @property
    def seen(self) -> list[str]:
        """The texts of all records that any child was done with, repeats left out, in their first order."""
        return list(dict.fromkeys(text for each in self.children.seen for text in each))

    @property
    def set_aside(self) -> list[str]:
        """The texts of the dead letters."""
        return [b64decode(letter.record.data).decode() for letter in self.letters.letters]

    def reported(self, event: str) -> list[dict[str, Any]]:
        """The fields of all log events of this name."""
        return [fields for _, found, fields in self.log.lines if found == event]

    @property
    def row(self) -> dict[str, Any]:
        """The lease's."""
        (row,) = at_once(self.leases.scan())
        return dict(row)

    def adapters(self) -> Adapters:
        """The world."""
        return Adapters(
            clock=LoopClock(),
            randomness=CalmChance(),
            kinesis=MemoryKinesis(self.model),
            tables=self.tables,
            transactions=MemoryTransactions(),
            children=self.children,
            log=self.log,
            dead_letters=self.letters,
            evidence=self.evidence,
            meters=self.counts,
        )

    async def work(self, scene: Callable[[], Awaitable[None]], **changes: Any) -> None:
        """Play a scene while the worker works; then stop it."""
        worker = build(replace(self.settings, **changes), self.adapters())
        async with anyio.create_task_group() as background:

            async def play() -> None:
                await scene()
                worker.request_stop()

            background.start_soon(play)
            await worker.run()
            self.ended_s = anyio.current_time()


async def until(holds: Callable[[], bool], within_s: float = 3_600.0) -> None:
    """Wait for a condition, in virtual time."""
    with anyio.fail_after(within_s):
        while not holds():  # noqa: ASYNC110 - the time is virtual
            await anyio.sleep(0.25)


def perform(stage: Stage, scene: Callable[[], Awaitable[None]], **changes: Any) -> Stage:
    """Create the stream, work until the scene is over, and give the stage back."""

    async def main() -> None:
        stage.model = KinesisModel(lambda: 1_770_000_000.0 + anyio.current_time())
        stage.call("CreateStream", StreamName=STREAM, ShardCount=1)
        await stage.work(scene, **changes)

    run_virtual(main)
    return stage
