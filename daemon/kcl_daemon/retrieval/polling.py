"""Reads one shard by polling (KCL: PrefetchRecordsPublisher).

Unlike KCL (KinesisSleepTimeController), a shard with more data is read again at once, up to the service's five reads and
2 MiB a second per shard.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import anyio

from kcl_daemon.config.retrieval import FASTEST_READS_MS, RetrievalSettings
from kcl_daemon.context import WorkerContext
from kcl_daemon.errors import (
    AccessDenied,
    AwsError,
    ChildNotListed,
    InvalidRequest,
    IteratorExpired,
    StreamNotFound,
    Throttled,
    Trimmed,
    Unavailable,
)
from kcl_daemon.ports import FetchedRecords, IteratorKind, Kinesis, ReadFrom
from kcl_daemon.records.batch import Batch
from kcl_daemon.records.payload import Payload
from kcl_daemon.retrieval.byte_budget import ByteBudget, Reservation
from kcl_daemon.retrieval.source import (
    INCONSISTENT_END,
    QUIET_ANSWERS,
    BufferedReader,
    DeliveryBatch,
    EndOfShard,
    Passed,
    ReachedBound,
    ReadItem,
    ShardSource,
    read_from,
    waiting_in,
)
from kcl_daemon.retrieval.stages import parts_of
from kcl_daemon.shards.lineage import segment_of

if TYPE_CHECKING:
    from kcl_daemon.retrieval.auto_pace import AutoPace

_SHORTEST_S: Final = FASTEST_READS_MS / 1000
_BYTES_PER_S: Final = 2 * 2**20
_LONGEST_BACKOFF_S: Final = 10.0
_SERVICE_DOMAINS: Final = (".amazonaws.com", ".amazonaws.com.cn", ".api.aws", ".api.amazonwebservices.com.cn")


@dataclass(frozen=True, slots=True)
class PollResult:
    count: int
    data_bytes: int
    behind_ms: int | None


@dataclass(frozen=True, slots=True)
class PollPace:
    """Of one shard.

    Args:
        idle_s: pause at the tip.
        reduced_within_s: a shard less than this far behind is read once in this interval (KCL:
            millisBehindLatestThresholdForReducedTps); 0: off.
        limited: respect the service's limits from the start, not only after throttling.
        share_s: no pause is shorter, so that other applications can read.
    """

    idle_s: float
    reduced_within_s: float = 0.0
    limited: bool = True
    failures: int = 0
    share_s: float = 0.0

    def failed(self, *, throttled: bool = False) -> PollPace:
        return PollPace(self.idle_s, self.reduced_within_s, self.limited or throttled, self.failures + 1)

    def succeeded(self) -> PollPace:
        return PollPace(self.idle_s, self.reduced_within_s, self.limited) if self.failures else self

    def pause_s(self, answer: PollResult | None, *, elapsed_s: float, chance: float) -> float:
        """From now. `answer` is None after a failure; `chance`, 0 to 1, spreads the retries."""
        if self.failures or answer is None:
            most: float = min(
                _LONGEST_BACKOFF_S, max(self.idle_s, _SHORTEST_S) * 2 ** min(max(self.failures - 1, 0), 10)
            )
            return max(self.share_s, most * (0.5 + chance / 2))
        return max(0.0, self._interval_s(answer) - elapsed_s, self.share_s - elapsed_s)

    def _interval_s(self, answer: PollResult) -> float:
        allowed_s = max(_SHORTEST_S, answer.data_bytes / _BYTES_PER_S)
        behind_s = (answer.behind_ms or 0) / 1000
        if not behind_s:
            return max(self.idle_s, allowed_s if self.limited else _SHORTEST_S, self.reduced_within_s)
        if behind_s < self.reduced_within_s:
            return max(self.idle_s, allowed_s, self.reduced_within_s)
        return allowed_s if self.limited or not answer.count else 0.0


def has_service_limits(endpoint: str | None) -> bool:
    host = None if endpoint is None else urlsplit(endpoint).hostname
    return host is None or host.endswith(_SERVICE_DOMAINS)


_CALL_TIMEOUT_S: Final = 60.0
_SUSPICIOUS_FAILURES: Final = 3
_GONE_PAUSE_S: Final = 60.0
_OLDEST: Final = ReadFrom(IteratorKind.TRIM_HORIZON)
# Iterators live for five minutes.
_ITERATOR_TTL_S: Final = 285.0
# Assumed size of the next answer; later the size of the last one.
_FIRST_EXPECTED_BYTES: Final = 8 * 2**20
_MIN_EXPECTED_BYTES: Final = 64 * 1024


class PollingReader(BufferedReader):
    """One taker at a time. Unless `reports_empty`, answers without records are not delivered."""

    def __init__(
        self,
        source: ShardSource,
        context: WorkerContext,
        budget: ByteBudget,
        *,
        kinesis: Kinesis,
        settings: RetrievalSettings,
        limited: bool = True,
        reports_empty: bool = True,
    ) -> None:
        super().__init__(source, context, budget)
        self._kinesis = kinesis
        self._settings = settings
        self._reports_empty = reports_empty
        self._buffer: deque[ReadItem] = deque()
        self._buffered_bytes = 0
        self._buffered_records = 0
        idle_ms = settings.idle_time_between_reads_ms
        self._auto: AutoPace | None = None
        if idle_ms is None:
            from kcl_daemon.retrieval.auto_pace import AutoPace

            self._auto = AutoPace()
        self._pace = PollPace(
            (FASTEST_READS_MS if idle_ms is None else idle_ms) / 1000,
            settings.reduced_tps_within_ms / 1000,
            limited=limited,
        )
        self._iterator_at_s = 0.0
        self._at_oldest = False  # what was next is lost
        self._expected_bytes = _FIRST_EXPECTED_BYTES
        self._told_ms: int | None = None
        self._quiet_ms = deque[int](maxlen=QUIET_ANSWERS)
        self._reservation: Reservation | None = None

    @property
    def oldest_s(self) -> float | None:
        for item in self._buffer:
            if isinstance(item, DeliveryBatch) and item.arrived_s is not None:
                return item.arrived_s
        return self._handing_out_s

    @property
    def waiting(self) -> tuple[int, int]:
        return waiting_in(self._buffer)

    async def next(self) -> ReadItem:
        while not self._buffer:
            await self._wait_until_filled()
        item = self._buffer.popleft()
        if isinstance(item, DeliveryBatch):
            self._buffered_bytes -= item.size_bytes
            self._buffered_records -= item.count
        self._taken.set()
        return item

    def close(self) -> None:
        while self._buffer:
            item = self._buffer.popleft()
            if isinstance(item, DeliveryBatch):
                item.release()
        self._release_reservation()

    async def run(self) -> None:
        try:
            await self._run()
        finally:
            self._release_reservation()

    async def _run(self) -> None:
        iterator = self._source.memory.idle_iterator if self._source.checkpoint.is_sentinel else None
        self._iterator_at_s = self._clock.monotonic()
        while True:
            await self._wait_for_room()
            began_s = self._clock.monotonic()
            if began_s - self._iterator_at_s > _ITERATOR_TTL_S:
                iterator = None
            try:
                iterator = iterator or await self._new_iterator()
                asked_ms = self._clock.passed_ms()
                fetched = await self._fetch(iterator)
                self._remember(fetched)
            except Trimmed as error:
                await self._after_loss(error, began_s)
                iterator = None
                continue
            except StreamNotFound as gone:
                if await self._shard_is_gone(gone):
                    self._put(EndOfShard(()))
                    return
                iterator = None
                continue
            except AwsError as error:
                if isinstance(error, ChildNotListed) and self._is_over():
                    self._put(ReachedBound(()))
                    return
                self._release_reservation()
                iterator = self._iterator_after(error, iterator)
                throttled = isinstance(error, Throttled)
                if throttled and self._auto is not None:
                    self._auto = self._auto.refused(self._clock.monotonic())
                await self._pause(self._pace.failed(throttled=throttled), None, began_s, throttled=throttled)
                continue
            self._iterator_at_s = self._clock.monotonic()
            answer = await self._accept(fetched, asked_ms)
            iterator = fetched.next_iterator
            del fetched
            if answer is None:
                return
            await self._pause(self._pace.succeeded(), answer, began_s)

    def _is_over(self) -> bool:
        self._quiet_ms.append(self._clock.passed_ms() - int(_CALL_TIMEOUT_S * 1000))
        tip_ms = self._source.tip_ms(0, self._quiet_ms)
        return tip_ms is not None and self._source.is_beyond(0, tip_ms)

    async def _shard_is_gone(self, error: StreamNotFound) -> bool:
        self._release_reservation()
        try:
            gone = await self._source.has_lost_shard()
        except AwsError:
            gone = False
        if gone:
            return await self._ends_gone(error)
        self._last_fetch.trouble = str(error)
        await self._source.wait_out(self._clock, _GONE_PAUSE_S)
        return False

    async def _after_loss(self, error: Trimmed, began_s: float) -> None:
        self._release_reservation()
        # Without a loss, records aged between two calls, and none of them was the next.
        if self._loss is None and self._where().sequence_number is None:
            await self._pause(self._pace.failed(), None, began_s)
            return
        if self._loss is None:
            self._tell_loss(await self._oldest(), str(error))
        if self._source.stops_at_loss:
            await self._stand_still()
        else:
            self._last_sequence_number, self._at_oldest = None, True

    async def _oldest(self) -> Payload | None:
        """Empty or None: not known."""
        try:
            iterator = await self._iterator_at(_OLDEST)
            return (await self._fetch(iterator, 1)).payload
        except AwsError:
            return None

    async def _wait_for_room(self) -> None:
        while not self._has_room():
            await self._wait_for_taker()
        self._reservation = await self._reserve(self._expected_bytes)

    async def _wait_for_taker(self) -> None:
        self._taken = anyio.Event()
        await self._taken.wait()

    def _has_room(self) -> bool:
        settings = self._settings
        if not settings.prefetch_batches:
            return self._child_waits
        return not self._buffer or (
            self._buffered_bytes < settings.prefetch_bytes
            and self._buffered_records < settings.prefetch_records
            and len(self._buffer) < settings.prefetch_batches
        )

    def _release_reservation(self) -> None:
        reservation, self._reservation = self._reservation, None
        if reservation is not None:
            reservation.release()

    async def _fetch(self, iterator: str, most: int | None = None) -> FetchedRecords:
        source, most = self._source, most or self._settings.max_records
        answer = self._kinesis.get_records(source.stream, source.shard_id, iterator, most)
        fetched = await self._context.call(answer, "GetRecords", timeout_s=_CALL_TIMEOUT_S)
        if (fetched.next_iterator is None) is not (bool(fetched.child_shards) or fetched.is_last):
            raise Unavailable(INCONSISTENT_END, operation="GetRecords")
        return fetched

    def _where(self) -> ReadFrom:
        if self._last_sequence_number is not None:
            return ReadFrom(IteratorKind.AFTER_SEQUENCE_NUMBER, sequence_number=self._last_sequence_number)
        source = self._source
        return _OLDEST if self._at_oldest else read_from(source.checkpoint, source.memory, source.timestamp_s)

    async def _iterator_at(self, where: ReadFrom) -> str:
        answer = self._kinesis.get_shard_iterator(self._source.stream, self._source.shard_id, where)
        try:
            return await self._context.call(answer, "GetShardIterator", timeout_s=_CALL_TIMEOUT_S)
        except Trimmed as error:
            if where.kind is not IteratorKind.TRIM_HORIZON:
                raise
            raise StreamNotFound(f"nothing is left of this shard: {error}") from error

    async def _new_iterator(self) -> str:
        memory, where = self._source.memory, self._where()
        asked_s = self._clock.monotonic()
        iterator = await self._iterator_at(where)
        self._iterator_at_s = self._clock.monotonic()
        self._quiet_ms.clear()
        if where.kind is IteratorKind.LATEST:
            # If nothing is answered while it lives, LATEST would skip records. The answer has told
            # the time of the service: read it now.
            took_s = self._iterator_at_s - asked_s
            memory.idle_iterator, memory.idle_until_s = iterator, self._clock.passed_ms() / 1000 - took_s
        return iterator

    async def _accept(self, fetched: FetchedRecords, asked_ms: int) -> PollResult | None:
        """None: nothing follows."""
        at_end, behind_ms = fetched.next_iterator is None, fetched.millis_behind_latest
        if fetched.payload or behind_ms:
            self._quiet_ms.clear()
        else:
            self._quiet_ms.append(asked_ms)
        tip_ms = self._source.tip_ms(asked_ms, self._quiet_ms)
        # At the end, its children have records since then.
        whole, at_bound = self._whole(fetched.payload, behind_ms, tip_ms, at_end=at_end, is_fresh=not at_end)
        gave, passed, size_bytes = False, None, whole.payload.size_bytes
        self._opened, parts = parts_of(self._source, whole)
        while (part := await parts.next()) is not None:
            if isinstance(part, Passed):
                passed = part
                continue
            self._opened.oldest_s = part.arrived_s
            if gave or self._opened.taken > 1:
                await self._room_for(part, size_bytes)
            gave = True
            self._put_batch(part)
        self._opened, is_empty = None, not gave and not at_end
        self._last_fetch.answer(behind_ms=behind_ms, empty=is_empty, now_s=self._iterator_at_s)
        # Empty answers must not replace full ones.
        if self._reports_empty and (
            not self._buffer or (not is_empty and self._told_ms != whole.complete_ms)
        ):
            self._put_batch(whole.end)
        if passed is not None:
            self._put(passed)
        self._release_reservation()
        self._expected_bytes = max(size_bytes, _MIN_EXPECTED_BYTES)
        if at_bound or at_end:
            self._put(ReachedBound(()) if at_bound else self._source.end(fetched.child_shards))
            return None
        data_bytes = whole.payload.data_bytes if self._source.stream.source.limits_bytes else 0
        return PollResult(len(whole), data_bytes, behind_ms)

    async def _room_for(self, part: Batch, whole_bytes: int) -> None:
        """Deaggregation can multiply the size: go no faster than the child takes the parts.

        A part no larger than its answer does not wait for other shards: they may all hold answers and wait too.
        """
        if self._reservation is not None:
            self._reservation.resize(whole_bytes)
        while not self._has_room():
            await self._wait_for_taker()
        if part.payload.size_bytes > whole_bytes:
            # The batch reserves these bytes again, with no await in between.
            (await self._reserve(part.payload.size_bytes, self._reservation)).release()

    def _put_batch(self, batch: Batch) -> None:
        self._put(self._batch(batch, self._budget.take(0, invariants=self._invariants)))

    def _remember(self, fetched: FetchedRecords) -> None:
        self._require_whole(fetched.payload)
        memory = self._source.memory
        if fetched.payload:
            self._remember_records(fetched.payload)
        elif memory.first_sequence_number is None:
            memory.idle_iterator, memory.idle_until_s = fetched.next_iterator, self._clock.passed_ms() / 1000

    def _put(self, item: ReadItem) -> None:
        self._buffer.append(item)
        self._count(item)
        if isinstance(item, DeliveryBatch):
            self._buffered_bytes += item.size_bytes
            self._buffered_records += item.count
            self._told_ms = item.complete_ms
        self._filled.set()

    def _iterator_after(self, error: AwsError, iterator: str | None) -> str | None:
        self._last_fetch.trouble = str(error)
        match error:
            case IteratorExpired() | InvalidRequest():
                self._log_renewal(error)
                self._source.memory.idle_iterator = None  # `idle_until_s` stays valid
                return None
            case AccessDenied():
                advice = f"grant {self._source.stream.source.service}:GetRecords and GetShardIterator on the stream"
                if segment_of(self._source.shard_id) is not None:
                    advice = "grant dynamodb:Scan and DescribeTable on the table"
                self._log.error("read_failed", error=str(error), advice=advice)
            case Throttled():
                self._log.debug("read_throttled", error=str(error))
            case _:
                self._log.warning("read_failed", error=str(error), failures=self._pace.failures + 1)
        return iterator

    def _log_renewal(self, error: AwsError) -> None:
        """Ever more rarely. What retries cannot fix is an error, once."""
        failures = self._pace.failures + 1
        if failures <= _SUSPICIOUS_FAILURES:
            log_event = self._log.info
        else:
            log_event = self._log.debug if failures & (failures - 1) else self._log.warning
        log_event("iterator_renewed", error=str(error), failures=failures)
        if failures == 2 * _SUSPICIOUS_FAILURES and isinstance(error, InvalidRequest):
            self._log.error(
                "position_refused",
                error=str(error),
                checkpoint=str(self._source.checkpoint),
                advice="the stream does not know this position. Does the file name another stream than before, or "
                "does applicationName belong to an application that reads another stream? Then stop it "
                "and use a new applicationName. Was the stream deleted and created again? Then stop the "
                "application and start over with `kcl-daemon leases reset`. The daemon tries again from "
                "time to time",
            )

    async def _pause(
        self, pace: PollPace, answer: PollResult | None, began_s: float, *, throttled: bool = False
    ) -> None:
        self._pace = pace
        now_s, auto = self._clock.monotonic(), self._auto
        chance = self._context.randomness.uniform(0, 1) if pace.failures or auto is not None else 0.0
        if auto is not None:
            if answer is not None:
                self._auto = auto = auto.answered(answer.count, answer.behind_ms)
            pace = replace(pace, idle_s=auto.idle_s(chance), share_s=auto.share_s(now_s, chance))
        pause_s = pace.pause_s(answer, elapsed_s=now_s - began_s, chance=chance)
        await self._clock.sleep(pause_s)
        if throttled or (answer is not None and answer.behind_ms):  # behind, the quota alone makes it wait
            self._flow.refused_s += min(pause_s, self._waited_s(began_s))
