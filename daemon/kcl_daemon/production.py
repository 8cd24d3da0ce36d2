"""The adapters of a real daemon."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path

from anyio import to_thread

from kcl_daemon.app import Adapters
from kcl_daemon.aws.build import (
    build_schemas,
    build_tables,
    build_transactions,
    open_kinesis_client,
    open_table_scan,
    open_update_item,
)
from kcl_daemon.aws.session import Clients, open_clients, unknown_regions
from kcl_daemon.children.process import ProcessChildren
from kcl_daemon.children.start import options_of
from kcl_daemon.config.children import PoisonRecordPolicy
from kcl_daemon.config.metrics_and_page import MetricsLevel
from kcl_daemon.config.retrieval import RetrievalMode
from kcl_daemon.config.settings import Settings
from kcl_daemon.cpu.sources import choose_cpu
from kcl_daemon.ports import Clock, CloudWatch, DeadLetters, FanOut, Log
from kcl_daemon.sources import open_sources
from kcl_daemon.state_folder import HostFolder, default_folders
from kcl_daemon.system import ServiceClock, SystemClock, SystemRandomness
from kcl_daemon.transport.caller import AwsJsonClient


@asynccontextmanager
async def real_adapters(settings: Settings, log: Log) -> AsyncGenerator[Adapters, None]:
    """On closing, all children end.

    Raises:
        ConfigurationError: region, endpoint, profile or dead letter file cannot be used; nothing was touched.
        AccessDenied: there are no credentials.
    """
    clock, service_clock = SystemClock(), ServiceClock()
    for name, nearest in await to_thread.run_sync(unknown_regions, settings.endpoints):
        log.warning("region_unknown", region=name, nearest=nearest)
    async with (
        open_clients(
            settings.endpoints, glue=settings.schemas.are_resolved, changes=settings.reads_changes
        ) as clients,
        open_kinesis_client(clients, clock, on_date=service_clock.learn) as client,
        open_table_scan(clients, clock) as scan,
        open_sources(
            settings, clients, client, service_clock, scan=scan, log=log, on_date=service_clock.learn
        ) as kinesis,
        open_update_item(clients, clock) as update_item,
        letters_of(settings) as dead_letters,
        cloudwatch_of(settings, clients, clock, log) as cloudwatch,
        _state_folder(settings, log) as folder,
        ProcessChildren(
            settings.child.command,
            log,
            clock,
            options_of(
                settings.child,
                # A rejected record must be of the batch that is open, and so must one that children fail at.
                finish_batches=settings.failures.poison is not PoisonRecordPolicy.RETRY
                or settings.failures.dead_letters is not None,
            ),
            kept_open_by_guard=lambda: folder.lock_file,
        ) as children,
    ):
        choice = choose_cpu(root=Path("/"), environment=os.environ, clock=clock)
        log.info(
            "cpu_figure_chosen", source=None if choice.cpu is None else choice.cpu.name, reason=choice.why
        )
        yield Adapters(
            clock=clock,
            randomness=SystemRandomness(),
            kinesis=kinesis,
            scan=scan,
            tables=build_tables(settings, clients, clock, update_item),
            transactions=build_transactions(clients),
            children=children,
            log=log,
            cpu=choice.cpu,
            kinesis_clock=service_clock,
            clock_ahead_s=service_clock.machine_ahead_s,
            cpu_host=choice.host,
            fan_out=_fan_out(settings, client),
            schemas=build_schemas(clients),
            dead_letters=dead_letters,
            cloudwatch=cloudwatch,
            state_folder=folder,
            evidence=folder,
        )


@asynccontextmanager
async def _state_folder(settings: Settings, log: Log) -> AsyncGenerator[HostFolder, None]:
    given = settings.state_folder
    endpoints = settings.endpoints
    folder = HostFolder(
        default_folders(os.environ) if given is None else (Path(given),),
        "\n".join(
            (
                settings.application_name,
                settings.lease_table,
                endpoints.of_dynamodb.region_name or endpoints.region_name or "",
                endpoints.dynamodb or "",
            )
        ),
        log,
    )
    try:
        yield folder
    finally:
        folder.close()


def letters_of(settings: Settings) -> AbstractAsyncContextManager[DeadLetters | None]:
    failures = settings.failures
    if failures.dead_letters is None:
        return nullcontext()
    return failures.dead_letters.writer(settings.endpoints, failures.dead_letter_overflow)


def cloudwatch_of(
    settings: Settings, clients: Clients, clock: Clock, log: Log
) -> AbstractAsyncContextManager[CloudWatch | None]:
    if settings.metrics.level is MetricsLevel.NONE:
        return nullcontext()
    from kcl_daemon.aws.cloudwatch import open_cloudwatch

    return open_cloudwatch(settings, clients, clock, log)


def _fan_out(settings: Settings, client: AwsJsonClient) -> FanOut | None:
    if settings.retrieval.mode is not RetrievalMode.FANOUT:
        return None
    from kcl_daemon.transport.event_stream import HttpFanOut

    return HttpFanOut(client)
