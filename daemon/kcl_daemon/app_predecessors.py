"""The part of `app` that is about other processes of this worker: those that have died on this host, and one of its name."""

from __future__ import annotations

from kcl_daemon.app_common import Common
from kcl_daemon.coordination.discovery import Discovery
from kcl_daemon.coordination.elector import Elector
from kcl_daemon.coordination.keeper import LeaseKeeper
from kcl_daemon.coordination.namesake import Namesake
from kcl_daemon.coordination.predecessors import Predecessors
from kcl_daemon.coordination.reporter import Reporter


def predecessors_of(
    common: Common, keeper: LeaseKeeper, elector: Elector, discovery: Discovery
) -> Predecessors:
    """What takes up what a killed daemon has left on this host."""
    most = common.settings.leases.max_leases_for_worker
    return Predecessors(
        folder=common.adapters.state_folder,
        tables=common.adapters.tables,
        worker_id=common.me,
        mine=common.incarnation,
        elector=elector,
        room=lambda: most - len(keeper.held),
        on_taken=discovery.take_assigned,
        on_same_id=discovery.nudge,
        clock=common.adapters.clock,
        timings=common.periods,
        log=common.log,
    )


def namesake_of(common: Common, predecessors: Predecessors) -> Namesake:
    """What finds out about another process with our worker id."""
    return Namesake(
        tables=common.adapters.tables,
        worker_id=common.me,
        mine=common.incarnation,
        predecessors=predecessors,
        clock=common.adapters.clock,
        timings=common.periods,
        log=common.log,
        on_younger=common.worker.fail,
    )


def lost_to_namesake(namesake: Namesake, reporter: Reporter) -> None:
    """A lease was lost to our own worker id: count that, and look at our row, which tells more."""
    namesake.lease_lost()
    reporter.nudge()
