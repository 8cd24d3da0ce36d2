"""One shard's line protocol with the daemon, in a blocking thread."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Self
from zlib import crc32

import pyarrow as pa

from kcl_landing import segments
from kcl_landing.control import EmitEvent, epoch_ms, monotonic_s, pause
from kcl_landing.log import Begin, Entry, Footer, LogInfo, Mark, entry_path, said
from kcl_landing.manifests import ShardLog
from kcl_landing.marks import merged
from kcl_landing.positions import START, Position, position
from kcl_landing.records import (
    FrameMessage,
    Message,
    RecordBatch,
    compact,
    last_position,
    plain_batch,
    plain_frame,
    rows_up_to,
)
from kcl_landing.relays import NothingYet, RelayConnection, RelayGone
from kcl_landing.shard import Adopt, Call, Create, Find, Look, Note, NoteTip, ShardLanding, retry_pause_s
from kcl_landing.store import LogStore, StoreTrouble
from kcl_landing.trouble import StoreWatch
from kcl_landing.writer import Limits, LogAltered, ShardWriter, Tail, Taken
from kcl_protocol.messages import FRAMES_VERSION, CheckpointRequest, Status

_LOOK_S: Final = 0.5
_DRAIN_S: Final = 10.0
_LAST_ATTEMPTS: Final = 5
_RETRYABLE: Final = frozenset({"ThrottlingException", "KinesisClientLibDependencyException"})


@dataclass(frozen=True, slots=True)
class Piece:
    batch: RecordBatch
    arrivals_ms: Sequence[int | None]
    last: Position
    size_bytes: int

    @property
    def rows(self) -> int:
        return len(self.arrivals_ms)

    @classmethod
    def of(cls, batch: RecordBatch, arrivals_ms: Sequence[int | None]) -> Self:
        """A small rest would keep all of a large message in memory: it is copied."""
        if batch.get_total_buffer_size() > 2 * batch.nbytes + 4096:
            batch = pa.ipc.read_record_batch(batch.serialize(), batch.schema)
        return cls(batch, arrivals_ms, last_position(batch), batch.nbytes)

    @classmethod
    def new(cls, batch: RecordBatch, arrivals_ms: Sequence[int | None], mark: Position) -> Self | None:
        known = rows_up_to(batch, mark)
        if known == len(arrivals_ms):
            return None
        return cls.of(batch.slice(known), arrivals_ms[known:])

    def split(self, before: Sequence[int]) -> Sequence[Self]:
        if not before:
            return [self]
        borders = zip([0, *before], [*before, self.rows], strict=True)
        return [
            self.of(self.batch.slice(begin, end - begin), self.arrivals_ms[begin:end])
            for begin, end in borders
        ]

    def behind(self, mark: Position) -> Self | None:
        return self.new(self.batch, self.arrivals_ms, mark)


class Memory:
    """Of all shards of this process."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._freed = threading.Condition()
        self._used: dict[object, int] = {}

    def hold(self, who: object, size_bytes: int) -> None:
        with self._freed:
            before = self._used.pop(who, 0)
            if size_bytes:
                self._used[who] = size_bytes
            if size_bytes < before:
                self._freed.notify_all()

    def is_full(self) -> bool:
        with self._freed:
            return sum(self._used.values()) >= self._max_bytes

    def wants_from(self, who: object) -> bool:
        """Whether memory is full, and a shard has its share or more."""
        with self._freed:
            return self.is_full() and self._used.get(who, 0) * len(self._used) >= self._max_bytes

    def wait(self, seconds: float) -> None:
        with self._freed:
            self._freed.wait_for(lambda: not self.is_full(), seconds)


@dataclass(slots=True)
class Counters:
    rows: int = 0
    size_bytes: int = 0
    segments: int = 0
    redelivered: int = 0
    landed_ms: int | None = None


@dataclass(slots=True)
class ShardState:
    shard_id: str = ""
    key: str = ""
    ended: bool = False
    counters: Counters = field(default_factory=Counters)
    landing: ShardLanding[Piece] | None = None


@dataclass(frozen=True, slots=True)
class Landing:
    store: LogStore
    info: LogInfo
    stream: str
    limits: Limits
    memory: Memory
    watch: StoreWatch
    counters: dict[str, Counters]
    stopping: threading.Event
    log_event: EmitEvent


class ShardConversation:
    def __init__(self, relay: RelayConnection, shared: Landing) -> None:
        self._relay = relay
        self._shared = shared
        self._log_event = shared.log_event
        self._writer_id = secrets.token_hex(8)
        self._stream = shared.stream
        self._asked: Position | None = None
        self._is_stopped = False
        self._shard_id = ""
        self._log: ShardLog
        self.state = ShardState()

    def run(self) -> None:
        """RelayGone: the connection broke, or the shard may not be written."""
        try:
            while self._perform():
                pass
        except (LogAltered, segments.Damaged) as error:
            self._log_event(
                "error",
                "landing_shard_refused",
                shard_id=self.state.shard_id,
                error=str(error),
                advice="nothing is written or checkpointed for this shard: look at it with `kcl-daemon landing verify`",
            )
            raise RelayGone from error
        finally:
            self._shared.memory.hold(self, 0)
            self._shared.watch.forget(self)

    @property
    def _landing(self) -> ShardLanding[Piece]:
        assert self.state.landing is not None, "the conversation begins with initialize"
        return self.state.landing

    def _perform(self) -> bool:
        message = self._next()
        if message is None:
            return False
        if message.action == "checkpoint":
            self._stored(message.error)
            return True
        if self._asked is not None:
            self._take_answer()
        status = Status(message.action)
        match message.action:
            case "initialize":
                status = self._initialize(message)
            case "processRecords":
                self._process(message)
                del message
                self._hold_back()
            case "shutdownRequested":
                self._is_stopped = True
                self._flush(_DRAIN_S)
                self._checkpoint()
            case "shardEnded":
                self._end(message)
            case _:
                self._landing.forget()
                self._count()
        self._relay.send(status)
        return True

    def _next(self) -> Message | None:
        while True:
            due_s = self.state.landing.due_s() if self.state.landing else None
            try:
                return self._relay.receive(None if due_s is None else min(due_s, monotonic_s() + _LOOK_S))
            except NothingYet:
                self._work()
            may_ask = self._asked is None and not self._is_stopped
            if may_ask and (durable := self._landing.checkpoint()) is not None:
                self._asked = durable
                self._relay.send(CheckpointRequest(str(durable[0]), durable[1]))

    def _initialize(self, message: Message) -> Status:
        shard_id = message.shard_id
        self._stream = message.stream_name or self._shared.stream
        name = shard_id if self._stream == self._shared.stream else f"{self._stream}/{shard_id}"
        stored = position(message.sequence_number, message.sub_sequence_number)
        self.state.shard_id, self.state.key = name, f"{self._stream}/{shard_id}"
        self._log = ShardLog(
            self._shared.store,
            self._shared.info,
            self._stream,
            shard_id,
            segments.read_footer,
            warn=self._warn,
            marks=True,
        )
        self._shard_id = shard_id
        tail = self._open(stored)
        writer = ShardWriter(tail, stored, token=message.fencing_token or 0, writer=self._writer_id)
        self.state.counters = self._shared.counters.setdefault(name, Counters())
        by_hour, is_scan = self._shared.info.layout == "dated", shard_id.startswith("snapshot-")
        limits = self._shared.limits
        self.state.landing = ShardLanding(writer, stored, limits, by_hour=by_hour, is_scan=is_scan)
        status = Status("initialize", FRAMES_VERSION)
        if tail.number < 0 or tail.last == START:
            return status
        return Status(
            "initialize", FRAMES_VERSION, sequence_number=str(tail.last[0]), sub_sequence_number=tail.last[1]
        )

    def _open(self, stored: Position) -> Tail:
        failures = 0
        while True:
            try:
                tail = self._log.open(is_new=stored == START, checkpoint=stored)
            except StoreTrouble as trouble:
                failures += 1
                self._shared.watch.failed(self, trouble)
                self._wait(monotonic_s() + retry_pause_s(failures))
            else:
                self._shared.watch.worked(self)
                return tail

    def _process(self, message: Message) -> None:
        landing = self._landing
        before = landing.redelivered
        if isinstance(message, FrameMessage):
            batch, arrivals = plain_frame(message.frame), compact(message.frame.arrivals_ms)
        else:
            batch = plain_batch(message.records)
            arrivals = compact([each.approximate_arrival_timestamp for each in message.records])
        if arrivals:
            part = Piece.new(batch, arrivals, landing.writer.mark)
            landing.take(part, last_position(batch), len(arrivals), monotonic_s())
        landing.at(message.millis_behind_latest, message.complete_millis)
        self.state.counters.redelivered += landing.redelivered - before

    def _hold_back(self) -> None:
        """While memory is full no status is sent, so the daemon sends no batch."""
        self._work()
        while self._shared.memory.is_full():
            self._look()
            self._shared.memory.wait(_LOOK_S)
            self._work()
        self._checkpoint()

    def _flush(self, patience_s: float | None = None) -> None:
        began_s = monotonic_s()
        while not self._landing.is_landed:
            self._work(flush=True)
            if self._landing.is_landed or self._landing.has_let_go:
                return
            if patience_s is not None and monotonic_s() > began_s + patience_s:
                return  # the next owner gets the rest
            self._wait(self._landing.due_s())

    def _work(self, *, flush: bool = False) -> None:
        """RelayGone: a newer owner was met."""
        landing, watch, memory = self._landing, self._shared.watch, self._shared.memory
        self._count()
        while (call := landing.next_call(monotonic_s(), flush=flush or memory.wants_from(self))) is not None:
            before = landing.redelivered
            try:
                answer = self._call(call)
            except StoreTrouble as trouble:
                watch.failed(self, trouble)
                landing.trouble(monotonic_s())
                break
            landing.done(call, answer)
            self._count()
            watch.worked(self)
            self.state.counters.redelivered += landing.redelivered - before
            if isinstance(call, Find):
                self._met(call.number)

    def _count(self) -> None:
        self._shared.memory.hold(self, self._landing.waiting_bytes)

    def _call(self, call: Call[Piece]) -> Entry | Footer | None:
        now_ms = epoch_ms()
        match call:
            case Create():
                return self._create(call)
            case Find():
                footer = self._log.footer(call.number, call.first_ms, call.is_end)
                if footer is None:
                    raise StoreTrouble("failed", f"segment {call.number} is there, but cannot be read")
                return footer
            case Note():
                self._log.append(call.entry, behind_ms=call.behind_ms, at_ms=now_ms)
            case Adopt():
                self._log.adopt(call.footer, behind_ms=call.behind_ms, at_ms=now_ms)
            case NoteTip():
                self._log.at_tip(behind_ms=call.behind_ms, at_ms=now_ms)
            case Look():
                self._log.mend(behind_ms=call.behind_ms, at_ms=now_ms)
        return None

    def _create(self, call: Create[Piece]) -> Entry | None:
        info, shard, is_end = self._shared.info, self._shard_id, call.children is not None
        other: Begin | None = None
        if call.after == START:
            other = self._log.other_begin(call.number, call.first_ms, is_end)
        if other is not None and other.is_end:
            return None
        call = call if other is None else call.empty(other.first_ms)
        footer = call.footer(
            application=info.application,
            stream=self._stream,
            shard=shard,
            token=self._landing.writer.token,
            writer=self._writer_id,
        )
        batches = [each.batch for each in call.draft.parts] if call.draft is not None else []
        content = segments.encode(info, batches, footer)
        entry = footer.entry(len(content), crc32(content))
        path = entry_path(info, self._stream, shard, entry)
        if not self._shared.store.create(path, content) or other is not None:
            return None
        counters = self.state.counters
        counters.rows += call.rows
        counters.size_bytes += len(content)
        counters.segments += 1
        counters.landed_ms = epoch_ms()
        return entry

    def _met(self, number: int) -> None:
        ours, shard_id = self._landing.taken is Taken.OURS, self.state.shard_id
        if self._landing.taken is Taken.NEWER:
            self._log_event("warning", "landing_let_go", shard_id=shard_id, number=number)
        else:
            self._log_event("info", "landing_segment_taken", shard_id=shard_id, number=number, ours=ours)
        if self._landing.has_let_go:
            raise RelayGone

    def _checkpoint(self) -> None:
        if (durable := self._landing.checkpoint()) is not None:
            self._asked = durable
            self._relay.send(CheckpointRequest(str(durable[0]), durable[1]))
            self._take_answer()

    def _take_answer(self) -> str | None:
        answer = self._relay.receive()
        if answer is None:
            raise RelayGone
        self._stored(answer.error)
        return answer.error

    def _stored(self, error: str | None) -> None:
        asked, self._asked = self._asked, None
        if error is None and asked is not None:
            self._landing.stored = max(asked, self._landing.stored)
        elif error is not None:
            self._log_event("warning", "checkpoint_not_stored", shard_id=self.state.shard_id, error=error)
        if error == "ShutdownException":
            self._landing.forget()
            self._count()

    def _end(self, message: Message) -> None:
        """Child shards start after this: the end must be durable first."""
        self._landing.end(message.child_shards)
        self._flush()
        if self._landing.has_let_go:
            return
        for attempt in range(_LAST_ATTEMPTS):
            self._relay.send(CheckpointRequest())
            error = self._take_answer()
            if error is None:
                self.state.ended = True
                tail = self._landing.writer.tail
                self._log_event(
                    "info",
                    "landing_shard_finished",
                    shard_id=self.state.shard_id,
                    number=tail.number,
                    last=said(tail.last),
                )
                return
            if error not in _RETRYABLE:
                return
            pause(0.2 * 2**attempt)

    def _look(self) -> None:
        if self._shared.stopping.is_set() or self._relay.is_gone():
            raise RelayGone

    def _wait(self, until_s: float | None) -> None:
        self._look()
        now_s = monotonic_s()
        pause(min(max(0.01, (until_s or now_s + _LOOK_S) - now_s), _LOOK_S))

    def _warn(self, message: str) -> None:
        self._log_event("warning", "landing_manifest_damaged", shard_id=self.state.shard_id, error=message)


def stated(states: Iterable[ShardState]) -> dict[str, Mark]:
    marks = (
        {each.key: mark}
        for each in states
        if not each.ended and each.landing is not None and (mark := each.landing.mark) is not None
    )
    return merged(marks)


def figures(state: ShardState, now_ms: int) -> dict[str, Any]:
    counters, landing = state.counters, state.landing
    drafts = [] if landing is None else list(landing.drafts)
    number = -1 if landing is None else landing.writer.tail.number
    opened_ms = drafts[0].opened_ms if drafts else None
    return {
        **asdict(counters),
        "number": None if number < 0 else number,
        "waiting_rows": sum(each.rows for each in drafts),
        "waiting_bytes": sum(each.size_bytes for each in drafts),
        "lag_s": 0.0 if opened_ms is None else max(0.0, (now_ms - opened_ms) / 1000),
    }
