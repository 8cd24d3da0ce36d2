"""Rows of workers that are long gone."""

from __future__ import annotations

import anyio

from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.leases.worker_row import WorkerRow, report
from tests.simulator.loop import run_virtual
from tests.unit.fleet.assigner_stage import Stage
from tests.unit.troubled import Trouble


def swept(
    *, reports_again: bool = False, trouble: Trouble = Trouble.NONE, after_s: float = 3700.0
) -> set[str]:
    """The workers whose rows are left."""

    async def play() -> set[str]:
        stage = Stage()
        table, now_s = stage.workers, stage.clock.wall_ms() // 1000
        await table.ensure()
        rows = [WorkerRow(WorkerId("gone"), now_s - 90_000), WorkerRow(WorkerId("alive"), now_s)]
        for row in rows:
            await table.update(report(row.worker_id, now_s=row.last_update_s))
        await anyio.sleep(after_s)
        if reports_again:
            await table.update(report(WorkerId("gone"), now_s=now_s))
        table.writes.append(trouble)
        stage.monitor.workers = rows
        await stage.assigner._delete_stale_workers()
        return {str(row["wid"]) for row in await table.scan()}

    return run_virtual(play)


def test_a_row_older_than_a_day_is_deleted_and_others_stay() -> None:
    assert swept() == {"alive"}


def test_an_old_worker_that_reports_after_it_was_read_is_kept() -> None:
    assert swept(reports_again=True) == {"alive", "gone"}


def test_old_workers_are_not_swept_in_every_run() -> None:
    assert swept(after_s=60.0) == {"alive", "gone"}


def test_trouble_is_for_the_next_sweep() -> None:
    assert swept(trouble=Trouble.THROTTLED) == {"alive", "gone"}
