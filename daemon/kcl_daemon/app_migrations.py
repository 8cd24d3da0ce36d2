"""The part of `app` that is about the two migrations: from KCL 2.x to 3.x, and into one table."""

from __future__ import annotations

from kcl_daemon.app_common import Common
from kcl_daemon.coordination.elector import Elector
from kcl_daemon.coordination.overview import Overview
from kcl_daemon.coordination.reporter import Reporter
from kcl_daemon.coordination.switchboard import Switchboard
from kcl_daemon.coordination.table_migrator import Means, TableMigrator
from kcl_daemon.coordination.versions import Versions


def versions_of(common: Common, switchboard: Switchboard) -> Versions:
    """What follows the version of the application."""
    return Versions(
        table=common.adapters.tables.coordinator,
        config=common.settings.leases.client_version_config,
        worker_id=common.me,
        switchboard=switchboard,
        clock=common.adapters.clock,
        randomness=common.adapters.randomness,
        call_s=common.periods.call_s,
        log=common.log,
        meters=common.adapters.meters,
    )


def migrator_of(common: Common, overview: Overview, elector: Elector, reporter: Reporter) -> TableMigrator:
    """This worker's part in the move into one table."""
    means = Means(overview=overview, transactions=common.adapters.transactions, report=reporter.report)
    return TableMigrator(
        routes=common.tables.routes,
        settings=common.settings.tables,
        elector=elector,
        means=means,
        worker_id=common.me,
        clock=common.adapters.clock,
        call_s=common.periods.call_s,
        report_s=common.periods.report_s,
        log=common.log,
        meters=common.adapters.meters,
    )
