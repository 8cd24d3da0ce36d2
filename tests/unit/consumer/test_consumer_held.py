"""A shard whose records are held back, by an operator or by its child: a whole worker in virtual time."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import pairwise
from typing import Any

import anyio
import pytest
from msgspec.structs import replace as changed

from kcl_daemon.config.children import ConcurrencySettings, LaneCounts
from kcl_daemon.config.retrieval import DeliverySettings
from kcl_daemon.fleet.hold_watch import change_holds, with_holds
from kcl_daemon.leases.holds import Hold, LimitUnit
from kcl_daemon.progress.progress import WaitReason
from kcl_daemon.progress.watchdog import ShardState
from kcl_protocol.codec import encode
from kcl_protocol.messages import CheckpointRequest, DaemonMessage, ProcessRecords, Status
from tests.unit.consumer.poison_stage import DEAD, STREAM, Reader, Ways, perform, until
from tests.unit.consumer.test_consumer_shown import Seen

PAUSE = Hold(by="ann@host", reason="the sink is down", since_ms=1_770_000_000_000)
LANES = {"concurrency": ConcurrencySettings(lanes=LaneCounts(3))}


async def hold(stage: Seen, *holds: Hold) -> None:
    await change_holds(stage.tables.coordinator, lambda before: with_holds(before, holds))


async def let_go(stage: Seen) -> None:
    await change_holds(stage.tables.coordinator, lambda _before: ())


def texts(count: int, name: str = "r") -> list[str]:
    return [f"{name}{number}" for number in range(count)]


def put(stage: Seen, some: Iterable[str]) -> None:
    """Under many keys."""
    for text in some:
        stage.put([text], key=text)


@pytest.mark.parametrize("more", [{}, LANES], ids=["one child", "lanes"])
def test_a_paused_shard_gives_nothing_lives_on_and_goes_on_at_once(more: dict[str, Any]) -> None:
    stage = Seen()

    async def scene() -> None:
        put(stage, texts(5))
        await until(lambda: len(stage.seen) == 5)
        await hold(stage, PAUSE)
        await anyio.sleep(6.0)
        put(stage, texts(50, "late"))
        await anyio.sleep(900.0)
        assert len(stage.seen) == 5
        shown = stage.shard
        assert (shown.state, shown.cause, shown.stalled) == (ShardState.PAUSED, WaitReason.PAUSED, False)
        assert shown.detail == "until it is ended, by ann@host: the sink is down"
        assert (shown.lag_s or 0.0) > 800
        assert [view.is_pause for view in stage.snapshots.now().holds] == [True]
        began_s, before = anyio.current_time(), len(stage.children.children)
        await let_go(stage)
        await until(lambda: len(stage.seen) == 55)
        assert anyio.current_time() - began_s < 4.0
        assert before == len(stage.children.children) or more

    perform(stage, scene, **more)
    assert not stage.reported("shard_stalled")


@pytest.mark.parametrize("more", [{}, LANES], ids=["one child", "lanes"])
def test_a_paused_worker_stops_as_quickly_as_any(more: dict[str, Any]) -> None:
    stage, stopped_s = Seen(), list[float]()

    async def scene() -> None:
        await hold(stage, PAUSE)
        await anyio.sleep(6.0)
        put(stage, texts(50))
        await anyio.sleep(30.0)
        stopped_s.append(anyio.current_time())

    perform(stage, scene, **more)
    assert stage.seen == []
    assert stage.ended_s - stopped_s[0] < 3.0


def test_a_pause_that_comes_near_the_retention_is_told_each_hour() -> None:
    stage = Seen()

    async def scene() -> None:
        await hold(stage, PAUSE)
        await anyio.sleep(6.0)
        put(stage, texts(1))
        await anyio.sleep(0.7 * 86_400)
        assert not stage.reported("held_near_retention")
        await anyio.sleep(0.1 * 86_400)

    perform(stage, scene)
    told = stage.reported("held_near_retention")
    assert len(told) == 2
    assert (told[0]["cause"], told[0]["retention_s"]) == ("paused", 86_400)
    assert 64_800 <= told[0]["oldest_s"] <= 64_810


class EarlyAsker(Reader):
    """Asks for its checkpoint when the test says so."""

    def _answer_to(self, message: DaemonMessage) -> bytes | None:
        answer = super()._answer_to(message)
        return encode(Status(message.action)) if isinstance(message, ProcessRecords) else answer


def test_a_checkpoint_is_stored_while_its_shard_is_paused() -> None:
    stage = Seen(Ways(checkpoints=False))
    stage.children.kind = EarlyAsker

    async def scene() -> None:
        put(stage, texts(5))
        await until(lambda: len(stage.seen) == 5)
        await hold(stage, PAUSE)
        await anyio.sleep(10.0)
        put(stage, texts(5, "late"))
        stage.children.children[0].say(encode(CheckpointRequest(None, None)))
        await until(lambda: stage.shard.checkpoint == stage.numbers()[4])
        assert len(stage.seen) == 5

    perform(stage, scene)


@pytest.mark.parametrize("more", [{}, LANES], ids=["one child", "lanes"])
@pytest.mark.parametrize("unit", list(LimitUnit))
def test_a_limit_is_kept_and_is_that_of_the_shard(more: dict[str, Any], unit: LimitUnit) -> None:
    stage = Seen()
    a_second = {LimitUnit.RECORDS: 20.0, LimitUnit.BYTES: 20.0 * 5}[unit]
    counts: list[int] = []

    async def scene() -> None:
        await hold(stage, changed(PAUSE, unit=unit, amount=a_second))
        await anyio.sleep(6.0)
        put(stage, [f"{number:05}" for number in range(600)])
        await until(lambda: len(stage.seen) > 0)
        before = len(stage.seen)
        for _ in range(2):
            await anyio.sleep(10.0)
            counts.append(len(stage.seen) - before)
            before = len(stage.seen)
        await let_go(stage)
        await until(lambda: len(stage.seen) == 600)

    perform(stage, scene, **more)
    # Of base64 data up to two bytes too much are counted.
    assert all(
        count == pytest.approx(200, rel=0.05 if unit is LimitUnit.RECORDS else 0.4) for count in counts
    )
    assert not stage.reported("shard_stalled")


def test_a_limit_that_is_ended_at_the_end_of_a_shard_is_no_cause_any_more() -> None:
    """One child hangs; the limit is not what the shard waits for, so that somebody must be told."""
    stage = Seen(Ways(dies_at=lambda text: text == "slow", hangs=True))

    def cause() -> WaitReason:
        return next(each.cause for each in stage.snapshots.now().shards if each.shard_id.endswith("000"))

    async def scene() -> None:
        await hold(stage, changed(PAUSE, unit=LimitUnit.RECORDS, amount=20.0))
        await anyio.sleep(6.0)
        put(stage, ["one", "slow"])
        stage.call(
            "SplitShard",
            StreamName=STREAM,
            ShardToSplit="shardId-000000000000",
            NewStartingHashKey=str(2**127),
        )
        await until(lambda: cause() is WaitReason.LIMITED)
        await anyio.sleep(30.0)
        await let_go(stage)
        await anyio.sleep(20.0)
        assert cause() is WaitReason.LANE
        stage.ways.dies_at = lambda text: False

    perform(stage, scene, **LANES)


class Breaker(Reader):
    """Asks for a pause of ten seconds after each batch."""

    pause_ms = 10_000

    def _answer_to(self, message: DaemonMessage) -> bytes | None:
        answer = super()._answer_to(message)
        if answer == encode(Status(ProcessRecords.action)):
            return encode(Status(ProcessRecords.action, pause_ms=self.pause_ms))
        return answer


class LongBreaker(Breaker):
    pause_ms = 10**12


class OddBreaker(Breaker):
    pause_ms = -1


def test_a_child_gets_the_pause_that_it_asks_for() -> None:
    stage = Seen()
    stage.children.kind = Breaker
    times: list[float] = []

    async def scene() -> None:
        for number in range(3):
            put(stage, [f"r{number}"])
            await until(lambda: len(stage.seen) > len(times))
            times.append(anyio.current_time())
            await anyio.sleep(5.0)
            assert stage.shard.cause is WaitReason.PAUSED
            assert stage.shard.detail == "its child asked for a pause"

    perform(stage, scene)
    assert all(10.0 <= later - earlier <= 12.0 for earlier, later in pairwise(times))
    assert not stage.reported("child_pause_bounded")


def test_at_a_stop_a_child_that_asked_for_a_pause_is_not_given_what_was_gathered_for_it() -> None:
    stage = Seen()
    stage.children.kind = LongBreaker

    async def scene() -> None:
        stage.put(texts(2))
        await until(lambda: stage.seen == ["r0"])
        await anyio.sleep(5.0)

    perform(stage, scene, delivery=DeliverySettings(batch_window_ms=2_000, batch_max_records=1))
    assert stage.seen == ["r0"]


@pytest.mark.parametrize("more", [{}, LANES], ids=["one child", "lanes"])
def test_a_child_that_asked_for_a_pause_is_asked_to_stop_at_once(more: dict[str, Any]) -> None:
    stage, stopped_s = Seen(), list[float]()
    stage.children.kind = LongBreaker

    async def scene() -> None:
        put(stage, texts(20))
        await until(lambda: len(stage.seen) > 0)
        await anyio.sleep(5.0)
        put(stage, texts(20, "late"))
        await anyio.sleep(5.0)
        stopped_s.append(anyio.current_time())

    perform(stage, scene, **more)
    assert not any(text.startswith("late") for text in stage.seen)
    assert stage.ended_s - stopped_s[0] < 3.0


@pytest.mark.parametrize(("kind", "pause_s"), [(LongBreaker, 900.0), (OddBreaker, 0.0)])
def test_an_absurd_pause_is_bounded_and_told_once(kind: type[Breaker], pause_s: float) -> None:
    stage = Seen()
    stage.children.kind = kind

    def has_seen(count: int) -> bool:
        return len(stage.seen) >= count

    async def scene() -> None:
        for number in range(3):
            put(stage, [f"r{number}"])
            began_s = anyio.current_time()
            await until(partial(has_seen, number + 1), within_s=1_000)
            assert not number or pause_s <= anyio.current_time() - began_s <= pause_s + 3

    perform(stage, scene)
    (told,) = stage.reported("child_pause_bounded")
    assert (told["asked_ms"], told["used_ms"]) == (kind.pause_ms, pause_s * 1000)


def test_a_pause_stops_between_the_parts_of_a_search_for_a_bad_record() -> None:
    stage = Seen(failures=DEAD)

    async def scene() -> None:
        put(stage, [*texts(20), "poison", *texts(20, "later")])
        await until(lambda: bool(stage.reported("poison_record_search")))
        await hold(stage, PAUSE)
        await anyio.sleep(20.0)
        seen = list(stage.seen)
        await anyio.sleep(200.0)
        assert stage.seen == seen
        await let_go(stage)
        await until(lambda: len(stage.seen) == 40, within_s=600)

    perform(stage, scene)
