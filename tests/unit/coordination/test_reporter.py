"""A worker's row: written while the worker lives, and gone when it has left."""

from __future__ import annotations

from kcl_daemon.config.settings import LeaseSettings
from kcl_daemon.coordination.reporter import Reporter
from kcl_daemon.coordination.timings import timings
from kcl_daemon.leases.lease import WorkerId
from tests.simulator.loop import run_virtual
from tests.unit.fakes import LoopClock, MemoryLog
from tests.unit.troubled import Trouble, TroubledTable

ME = WorkerId("me")


async def stage() -> tuple[TroubledTable, Reporter]:
    table = TroubledTable("metrics", "wid")
    await table.ensure()
    reporter = Reporter(
        table=table, worker_id=ME, clock=LoopClock(), timings=timings(LeaseSettings()), log=MemoryLog()
    )
    return table, reporter


def test_a_report_that_arrives_after_the_worker_has_left_does_not_bring_its_row_back() -> None:
    async def play() -> None:
        table, reporter = await stage()
        assert await reporter.report()
        table.writes.append(Trouble.LATE)
        assert not await reporter.report()
        await reporter.retire()
        await table.land()
        assert await table.scan() == []

    run_virtual(play)


def test_a_row_that_somebody_took_away_is_written_again_at_the_next_report() -> None:
    async def play() -> None:
        table, reporter = await stage()
        assert await reporter.report()
        await table.delete(ME)
        assert await reporter.report()
        assert await table.get(ME) is not None

    run_virtual(play)


def test_a_report_costs_one_request_where_the_row_stands() -> None:
    async def play() -> None:
        table, reporter = await stage()
        assert await reporter.report()
        table.calls.clear()
        assert await reporter.report()
        assert table.calls == ["update"]

    run_virtual(play)
