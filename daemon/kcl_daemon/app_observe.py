"""A worker together with what is told of it; `app` makes the worker."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

from kcl_daemon.app import Adapters, build
from kcl_daemon.config.settings import Settings
from kcl_daemon.coordination.streams import OneStream
from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.observe.snapshots import Snapshots
from kcl_daemon.observe.spark_view import SparkSource, no_spark
from kcl_daemon.worker.worker import Worker

_ARN_COLONS: Final = 5


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
        place=partial(place_of, settings, worker),
    )
    return Assembled(worker, snapshots)


def place_of(settings: Settings, worker: Worker) -> str:
    """What is read and where, in words: `stream orders in eu-west-1, account 123456789012`."""
    streams = worker.streams
    arn = streams.arn if isinstance(streams, OneStream) else None
    if arn is not None and arn.count(":") >= _ARN_COLONS:
        _, _, _, of_arn, account, name = arn.split(":", _ARN_COLONS)
        return f"stream {name.removeprefix('stream/')} in {of_arn}, account {account}"
    names = ", ".join(settings.streams.texts) or settings.stream_arn or settings.stream_name
    region = settings.endpoints.region_name
    where = "" if region is None else f" in {region}"
    return f"{'streams' if settings.streams.texts else 'stream'} {names}{where}"
