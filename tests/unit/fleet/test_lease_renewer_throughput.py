"""What renewals and checkpoints say of a lease's throughput."""

from __future__ import annotations

from dataclasses import replace

import anyio
import pytest

from kcl_daemon.config.balance import LeaseSettings
from kcl_daemon.context import timings
from kcl_daemon.fleet.lease_renewer import HeldLease
from kcl_daemon.leases.lease import Lease, Throughput
from kcl_protocol.sequence import TRIM_HORIZON
from tests.simulator.loop import run_virtual
from tests.unit.fleet.contexts import lease_renewer, worker_context
from tests.unit.fleet.renewer_stage import KEY, ME, Stage, at, play
from tests.unit.troubled import Trouble, TroubledTable

KIB = 1024
PERIOD_S = 4.0


async def flows(held: HeldLease, seconds: int, *, kib_per_s: int = 100) -> None:
    """Batches are delivered at a steady rate."""
    for _ in range(seconds):
        await anyio.sleep(1.0)
        held.throughput.record(kib_per_s * KIB, now_s=anyio.current_time())


async def stored(stage: Stage) -> float | None:
    return (await stage.stored()).throughput_kbps


def test_a_lease_whose_child_does_not_checkpoint_has_its_throughput_written_by_renewals() -> None:
    async def scene(stage: Stage, held: HeldLease) -> None:
        await flows(held, 60)
        figure = await stored(stage)
        assert figure is not None
        assert 90 < figure <= 100

    play(scene, running=True)


def test_the_stored_figure_falls_while_the_shard_is_idle_until_it_is_nothing() -> None:
    async def scene(stage: Stage, held: HeldLease) -> None:
        await flows(held, 60)
        await stage.renewer.checkpoint(held, at(60))
        busy = await stored(stage)
        assert busy is not None
        await anyio.sleep(2 * PERIOD_S)
        assert await stored(stage) == busy, "a pause between batches is not idle yet"
        await anyio.sleep(3 * PERIOD_S)
        idle = await stored(stage)
        assert idle is not None
        assert 0 < idle < busy / 7
        await anyio.sleep(1800)
        assert await stored(stage) == 0

    play(scene, running=True)


def test_nothing_is_said_of_a_lease_that_never_delivered_anything() -> None:
    async def scene(stage: Stage, held: HeldLease) -> None:
        await anyio.sleep(60)
        assert await stored(stage) is None

    play(scene, running=True)


def test_a_checkpoint_that_is_stored_already_takes_no_figure_from_the_renewal() -> None:
    async def scene(stage: Stage, held: HeldLease) -> None:
        await stage.renewer.checkpoint(held, at(1))
        for _ in range(600):
            held.throughput.record(10 * KIB, now_s=anyio.current_time())
            await anyio.sleep(0.1)
            await stage.renewer.checkpoint(held, at(1))
        figure = await stored(stage)
        assert figure is not None
        assert 90 < figure <= 110

    play(scene, running=True)


def test_a_renewal_that_failed_is_made_good_with_a_figure_a_period_later() -> None:
    async def scene(stage: Stage, held: HeldLease) -> None:
        stage.table.writes.extend([Trouble.THROTTLED, Trouble.FAILED_BEFORE])
        await flows(held, 14)
        figure = await stored(stage)
        assert figure is not None
        assert 70 < figure <= 100

    play(scene, running=True)


@pytest.mark.parametrize("between_s", [0.5, 1.0, 2.0, 3.0, 5.0, 6.0, 8.0, 13.0, 20.0, 60.0])
@pytest.mark.parametrize("checkpoints", [True, False])
def test_bursts_count_whole_whatever_their_distance_and_whether_they_are_checkpointed(
    between_s: float, checkpoints: bool
) -> None:
    figures: list[float] = []

    async def scene(stage: Stage, held: HeldLease) -> None:
        for number in range(1, 100):
            await anyio.sleep(between_s)
            held.throughput.record(int(between_s * 100 * KIB), now_s=anyio.current_time())
            if checkpoints:
                await stage.renewer.checkpoint(held, at(number))
            figure = await stored(stage)
            if number >= 10 and figure is not None:
                figures.append(figure)

    play(scene, running=True)
    assert figures == [pytest.approx(100, rel=0.1)] * len(figures)


def test_a_lease_just_taken_keeps_its_figure_until_its_child_may_be_given_records() -> None:
    async def scene(stage: Stage, held: HeldLease) -> None:
        held.throughput = Throughput(PERIOD_S, now_s=anyio.current_time(), stored_kbps=100.0)
        await anyio.sleep(60)
        assert await stored(stage) is None, "nothing is written: the figure of the row stays"
        held.throughput.begins()
        await anyio.sleep(4 * PERIOD_S)
        figure = await stored(stage)
        assert figure is not None
        assert figure <= 25.0

    play(scene, running=True)


@pytest.mark.parametrize("failover_ms", [1, 10, 25, 30])
def test_a_lease_is_taken_whatever_the_failover_time(failover_ms: int) -> None:
    async def scene() -> None:
        context = replace(worker_context(ME), timings=timings(LeaseSettings(failover_time_ms=failover_ms)))
        lease = Lease(KEY, 7, TRIM_HORIZON, lease_owner=ME)
        held = lease_renewer(context, TroubledTable()).adopt(lease, moved_s=anyio.current_time())
        now_s = anyio.current_time() + 1.0
        held.throughput.record(KIB, now_s=now_s)
        assert held.throughput.at_renewal(now_s=now_s) == pytest.approx(1.0)

    run_virtual(scene)
