"""`maxRecordAgeMillis` beside all that cuts and joins what was read: only what is too old is left out; in virtual time."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import anyio
import pytest

from kcl_daemon.app import Adapters
from kcl_daemon.config.children import ConcurrencySettings, LaneCounts
from kcl_daemon.config.retrieval import DeliverySettings, RetrievalSettings
from kcl_daemon.leases.holds import Hold, LimitUnit
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.ports import FetchedRecords, StreamRef
from kcl_daemon.records.dead_letter import DeadLetter
from kcl_daemon.records.payload import Payload
from kcl_daemon.records.record_filter import RecordFilter
from kcl_local.kinesis.model import KinesisModel
from kcl_protocol.messages import DaemonMessage, ProcessRecords, Record
from tests.simulator.memory.kinesis import MemoryKinesis
from tests.unit.consumer.poison_stage import DEAD, MemoryDeadLetters, Reader, Ways, perform, until
from tests.unit.consumer.test_consumer_held import hold
from tests.unit.consumer.test_consumer_shown import Seen

MOST_S: Final = 60.0
EPOCH_S: Final = 1_770_000_000.0
PUT: Final = 200
LIMIT: Final = Hold("ann@host", "slowly", 0, unit=LimitUnit.RECORDS, amount=10.0)

BY_THREES: Final = DeliverySettings(batch_max_records=3)
FILTER: Final = RecordFilter.of('{"data": [{"anything-but": {"suffix": "7"}}]}')
LANES: Final = ConcurrencySettings(lanes=LaneCounts(3))
SMALL: Final = replace(LANES, window_bytes=4_000)
WAYS: Final[dict[str, dict[str, Any]]] = {
    "as it is read": {},
    "limit": {"delivery": BY_THREES},
    "bytes": {"delivery": DeliverySettings(batch_max_bytes=15)},
    "window": {"delivery": DeliverySettings(batch_window_ms=7_000)},
    "window and limit": {"delivery": DeliverySettings(batch_window_ms=7_000, batch_max_records=3)},
    "filter": {"delivery": DeliverySettings(record_filter=FILTER)},
    "filter and limit": {"delivery": replace(BY_THREES, record_filter=FILTER)},
    "lanes": {"concurrency": LANES},
    "lanes and window": {"concurrency": LANES, "delivery": DeliverySettings(batch_window_ms=7_000)},
    "lanes, limit and filter": {"concurrency": SMALL, "delivery": replace(BY_THREES, record_filter=FILTER)},
}


class Dated(MemoryDeadLetters):
    """Notes how old each record was when it was set aside."""

    def __init__(self) -> None:
        super().__init__()
        self.ages_s: list[float] = []

    async def store(self, dead_letter: DeadLetter) -> None:
        arrived_ms = dead_letter.record.approximate_arrival_timestamp
        assert arrived_ms is not None
        self.ages_s.append(EPOCH_S + anyio.current_time() - arrived_ms / 1000)
        await super().store(dead_letter)


class Aged(Reader):
    """Notes how old the records were that it was given."""

    ages_s: list[float]

    def _answer_to(self, message: DaemonMessage) -> bytes | None:
        self.ages_s = getattr(self, "ages_s", [])
        if isinstance(message, ProcessRecords):
            now_s = EPOCH_S + anyio.current_time()
            self.ages_s += [
                now_s - (each.approximate_arrival_timestamp or 0) / 1000 for each in message.records
            ]
        return super()._answer_to(message)


@pytest.mark.parametrize("hindered", [False, True], ids=["freely", "limited, with poison"])
@pytest.mark.parametrize("way", WAYS)
def test_only_records_that_are_too_old_are_left_out(way: str, hindered: bool) -> None:
    letters = Dated()
    stage = Seen(Ways(starts=False), replace(DEAD, max_age_ms=int(MOST_S * 1000)), letters=letters)
    stage.children.kind = Aged
    stage.ways.dies_at = lambda text: hindered and text in {"r130", "r180"}
    kept = [f"r{number}" for number in range(PUT)]
    if "filter" in way:
        kept = [text for text in kept if not text.endswith("7")]

    async def scene() -> None:
        if hindered:
            await hold(stage, LIMIT)
        for number in range(PUT):
            stage.ways.starts = number > 150
            stage.put([f"r{number}"], f"key {number % 7}")
            await anyio.sleep(1)
        await until(lambda: len({*stage.seen, *stage.set_aside}) == len(kept))

    perform(stage, scene, **WAYS[way])
    ages_s = [each for child in stage.children.children if isinstance(child, Aged) for each in child.ages_s]
    expired = [each.cause.value == "expired" for each in letters.letters]
    assert (
        min(age_s for age_s, is_expired in zip(letters.ages_s, expired, strict=True) if is_expired) > MOST_S
    )
    assert max(ages_s) < MOST_S + 30.0, "what waited at a limit is a little older"
    assert sum(expired) > 50
    assert {*stage.seen, *stage.set_aside} == {*kept}


def test_a_lane_that_reads_again_makes_the_records_of_others_no_older() -> None:
    """What it reads is far behind the tip, and so are the answers; what waits for the other lane came in others."""
    stage = Seen(
        Ways(lambda text: text == "slow", hangs=True, checkpoints=False), replace(DEAD, max_age_ms=60_000)
    )

    async def scene() -> None:
        stage.put([f"old {number}" for number in range(40)], "b")
        await until(lambda: len(stage.seen) == 40)
        await anyio.sleep(100)
        stage.put(["slow"], "a")
        stage.put([f"fresh {number}" for number in range(30)], "a")
        await anyio.sleep(5)
        lanes = [lane.number for lane in stage.children.lanes if lane is not None]
        first, second = stage.children.children
        assert lanes[0] != lanes[1]
        first.end(9)
        await anyio.sleep(5)
        stage.ways.dies_at = lambda text: False
        second.end(9)
        await until(lambda: len({*stage.seen, *stage.set_aside}) == 71)

    retrieval = RetrievalSettings(max_records=5, idle_time_between_reads_ms=200)
    perform(stage, scene, concurrency=replace(SMALL, lanes=LaneCounts(4)), retrieval=retrieval)
    assert stage.reported("lane_reads_again")
    assert [text for text in stage.set_aside if not text.startswith("old")] == []


class Redated(MemoryKinesis):
    """Gives records other dates than the model has: `date_ms` says which, by its place in an answer and the record."""

    def __init__(self, model: KinesisModel, date_ms: Callable[[int, Record], int | None]) -> None:
        super().__init__(model)
        self._date_ms = date_ms

    async def get_records(
        self, stream: StreamRef, shard_id: ShardId, iterator: str, limit: int
    ) -> FetchedRecords:
        fetched = await super().get_records(stream, shard_id, iterator, limit)
        records = [
            replace(each, approximate_arrival_timestamp=self._date_ms(place, each))
            for place, each in enumerate(fetched.payload.decoded())
        ]
        return replace(fetched, payload=Payload.of(records))


def second_is_younger(place: int, record: Record) -> int | None:
    """Kinesis dates records by the clocks of many hosts: the second of three seems to be two minutes younger."""
    return (record.approximate_arrival_timestamp or 0) + (120_000 if place == 1 else 0)


def some_undated(_place: int, record: Record) -> int | None:
    """DynamoDB may leave out a date: here of one record."""
    return None if b64decode(record.data) == b"undated" else record.approximate_arrival_timestamp


class RedatedStage(Seen):
    def adapters(self) -> Adapters:
        return replace(super().adapters(), kinesis=Redated(self.model, second_is_younger))


def test_the_checkpoint_does_not_pass_a_fresh_record_that_stands_before_an_old_one() -> None:
    stage = RedatedStage(
        Ways(lambda text: text == "fresh", hangs=True, starts=False), replace(DEAD, max_age_ms=60_000)
    )

    async def scene() -> None:
        stage.put(["old", "fresh", "old too"])
        await anyio.sleep(100)
        stage.ways.starts = True
        await until(lambda: stage.set_aside == ["old", "old too"])
        await anyio.sleep(30)
        assert stage.row["checkpoint"] == stage.numbers()[0]
        stage.children.children[-1].end(9)

    perform(stage, scene)


def test_the_checkpoint_does_not_pass_an_old_record_whose_letter_was_not_stored() -> None:
    """Of two letters one is too large, until there is a stop."""
    stage = Seen(Ways(starts=False), replace(DEAD, max_age_ms=60_000))
    stage.letters.most_bytes = 1_000

    async def scene() -> None:
        stage.put(["old", "large" * 1_000])
        await anyio.sleep(100)
        stage.ways.starts = True
        await until(lambda: bool(stage.reported("dead_letter_failed")))

    perform(stage, scene)
    assert stage.set_aside == ["old"]
    assert stage.row["checkpoint"] == "TRIM_HORIZON"
    assert stage.reported("records_expired") == []


class UndatedStage(Seen):
    def adapters(self) -> Adapters:
        return replace(super().adapters(), kinesis=Redated(self.model, some_undated))


def test_a_batch_may_begin_with_a_record_without_a_date_before_one_that_is_too_old() -> None:
    stage = UndatedStage(Ways(starts=False), replace(DEAD, max_age_ms=60_000))

    async def scene() -> None:
        stage.put(["old", "old too", "undated", "old at last"])
        await anyio.sleep(100)
        stage.ways.starts = True
        await until(lambda: len({*stage.seen, *stage.set_aside}) == 4, within_s=300)

    perform(stage, scene, delivery=DeliverySettings(batch_max_records=2))
    assert stage.seen == ["undated"]
    assert stage.reported("consumer_crashed") == []


def test_a_checkpoint_behind_records_that_are_too_old_is_progress() -> None:
    """A former child had been given all of it, and then failed: nobody may say that the shard has stood still since."""
    stage = Seen(Ways(lambda text: False, checkpoints=False), replace(DEAD, max_age_ms=60_000))

    async def scene() -> None:
        stage.put(["old"])
        await anyio.sleep(50)
        stage.put(["fresh"])
        await until(lambda: len(stage.seen) == 2)
        await anyio.sleep(15)
        stage.children.children[0].end(9)
        await until(lambda: stage.shard.failures == 1)
        await until(lambda: stage.row["checkpoint"] == stage.numbers()[0])
        assert stage.set_aside == ["old"]
        assert stage.shard.failures == 0

    perform(stage, scene)
