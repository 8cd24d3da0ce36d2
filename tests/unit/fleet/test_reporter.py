"""A worker's row: written while the worker lives, and gone when it has left."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal

import anyio
import pytest

from kcl_daemon.fleet.reporter import Reporter
from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.leases.worker_row import CPU, Incarnation, MetricName, report, worker_from_row
from tests.simulator.loop import run_virtual
from tests.unit.fleet.contexts import worker_context
from tests.unit.troubled import Trouble, TroubledTable

ME, JAVA = WorkerId("me"), WorkerId("java")


async def stage(
    *, leader: WorkerId | None = None, averages: Callable[[], Sequence[Decimal]] | None = None
) -> tuple[TroubledTable, Reporter]:
    table = TroubledTable("metrics", "wid")
    await table.ensure()
    reporter = Reporter(
        worker_context(ME),
        table=table,
        cpu_averages=averages,
        java_leader=lambda: leader,
        incarnation=Incarnation(1, "mine"),
        on_other=lambda _: False,
    )
    return table, reporter


async def metrics_of(table: TroubledTable) -> Mapping[MetricName, tuple[float, ...]]:
    row = await TroubledTable.get(table, ME)
    found = worker_from_row(row or {}, key_attribute="wid")
    assert found is not None
    return found.metrics


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


@pytest.mark.parametrize("trouble", [Trouble.THROTTLED, Trouble.FAILED_BEFORE, Trouble.HANGS_BEFORE])
def test_a_row_that_cannot_be_deleted_at_once_is_deleted_at_the_next_try(trouble: Trouble) -> None:
    """Found by the simulator, `foreign_epochs` 179: leases went to a worker that had stopped."""

    async def play() -> None:
        table, reporter = await stage()
        assert await reporter.report()
        table.writes.extend([trouble, trouble])
        await reporter.retire()
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


@pytest.mark.parametrize(
    ("leader", "leaders_cpu", "reported"),
    [(None, None, (30.0,)), (JAVA, None, (30.0,)), (JAVA, (), ()), (JAVA, (50.0,), (30.0,))],
)
def test_the_cpu_is_reported_unless_a_java_leader_reports_none(
    leader: WorkerId | None, leaders_cpu: tuple[float, ...] | None, reported: tuple[float, ...]
) -> None:
    async def play() -> None:
        table, reporter = await stage(leader=leader, averages=lambda: [Decimal(30)])
        if leaders_cpu is not None:
            await table.update(report(JAVA, now_s=1, metrics={CPU: leaders_cpu}))
        assert await reporter.report()
        assert (await metrics_of(table)).get(CPU, ()) == reported

    run_virtual(play)


def test_a_leaders_row_that_cannot_be_read_changes_nothing() -> None:
    async def play() -> None:
        table, reporter = await stage(leader=JAVA, averages=lambda: [Decimal(30)])
        await table.update(report(JAVA, now_s=1))
        assert await reporter.report()
        await table.delete(JAVA)
        assert await reporter.report()
        assert await metrics_of(table) == {}

    run_virtual(play)


def test_under_a_java_leader_with_a_cpu_figure_the_first_one_of_ours_comes_after_two_captures() -> None:
    async def play() -> None:
        began_s = anyio.current_time()

        def averages() -> list[Decimal]:
            return [] if anyio.current_time() - began_s < 1 else [Decimal(30)]

        table, reporter = await stage(leader=JAVA, averages=averages)
        await table.update(report(JAVA, now_s=1, metrics={CPU: (50.0,)}))
        with anyio.move_on_after(2.5):
            await reporter.run()
        assert await metrics_of(table) == {CPU: (30.0,)}

    run_virtual(play)
