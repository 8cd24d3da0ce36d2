"""A worker together with what is told of it; `app` makes the worker."""

from __future__ import annotations

from dataclasses import dataclass

from kcl_daemon.app import Adapters, build
from kcl_daemon.config.settings import Settings
from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.observe.snapshots import Snapshots
from kcl_daemon.worker.worker import Worker


@dataclass(frozen=True, slots=True)
class Assembled:
    """A worker that is ready to run, and who tells how it is."""

    worker: Worker
    snapshots: Snapshots


def assemble(settings: Settings, adapters: Adapters) -> Assembled:
    """`app.build`, with a source of snapshots. Touches nothing yet."""
    worker = build(settings, adapters)
    snapshots = Snapshots(
        worker,
        application=settings.application_name,
        worker_id=WorkerId(settings.worker_id),
        clock=adapters.clock,
        log=adapters.log.bind(worker_id=settings.worker_id),
    )
    return Assembled(worker, snapshots)
