"""A worker together with what is told of it; `app` makes the worker."""

from __future__ import annotations

from dataclasses import dataclass

from kcl_daemon.app import Adapters, build
from kcl_daemon.config.settings import Settings
from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.observe.snapshots import Snapshots
from kcl_daemon.observe.spark_view import SparkSource, no_spark
from kcl_daemon.worker.worker import Worker


@dataclass(frozen=True, slots=True)
class Assembled:
    """A worker that is ready to run, and who tells how it is."""

    worker: Worker
    snapshots: Snapshots


def assemble(settings: Settings, adapters: Adapters, spark: SparkSource = no_spark) -> Assembled:
    """`app.build`, with a source of snapshots, in which the Spark engine is where there is one. Touches nothing yet."""
    worker = build(settings, adapters)
    snapshots = Snapshots(
        worker,
        application=settings.application_name,
        worker_id=WorkerId(settings.worker_id),
        clock=adapters.clock,
        log=adapters.log.bind(worker_id=settings.worker_id),
        spark=spark,
    )
    return Assembled(worker, snapshots)
