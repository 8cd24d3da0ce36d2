"""The adapters of a real daemon: AWS, child processes, the machine's clock and chance.

Owns what is opened for a run, and that it is closed again in the right order. Knows nothing of what the worker does
with it.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from anyio import to_thread

from kcl_daemon.app import Adapters
from kcl_daemon.aws.build import (
    build_fan_out,
    build_kinesis,
    build_schemas,
    build_tables,
    build_transactions,
    open_caller,
    open_updates,
)
from kcl_daemon.aws.cloudwatch import open_cloudwatch
from kcl_daemon.aws.dead_letters import open_remote_dead_letters
from kcl_daemon.aws.session import open_clients, unknown_regions
from kcl_daemon.children.options import options_of
from kcl_daemon.children.process import ProcessChildren
from kcl_daemon.config.failure_settings import LetterBox
from kcl_daemon.config.settings import Settings
from kcl_daemon.cpu.metadata import MetadataClient
from kcl_daemon.cpu.select import choose
from kcl_daemon.dead_letter_file import DeadLetterFile
from kcl_daemon.ports import Log
from kcl_daemon.ports_failures import DeadLetters
from kcl_daemon.state_folder import HostFolder, default_folders
from kcl_daemon.system import ServiceClock, SystemClock, SystemRandomness
from kcl_daemon.transport.kinesis import FastKinesis


@asynccontextmanager
async def real_adapters(settings: Settings, log: Log) -> AsyncGenerator[Adapters, None]:
    """The adapters while the context is open; at its end, by whatever way, no child runs any more.

    Raises:
        ConfigurationError: region, endpoint or profile cannot be used, or dead letters cannot be kept in the file that
            is named; nothing has been touched.
        AccessDenied: there are no credentials.
    """
    clock, service_clock = SystemClock(), ServiceClock()
    for name, nearest in await to_thread.run_sync(unknown_regions, settings.endpoints):
        log.warning("region_unknown", region=name, nearest=nearest)
    async with (
        open_clients(settings.endpoints, glue=settings.schemas.are_resolved) as clients,
        open_caller(clients, clock, on_date=service_clock.learn) as caller,
        open_updates(clients, clock) as updates,
        _dead_letters(settings) as dead_letters,
        open_cloudwatch(settings, clients, clock, log) as cloudwatch,
        _state_folder(settings, log) as folder,
        ProcessChildren(
            settings.child.command,
            log,
            clock,
            options_of(settings.child),
            held_by_guard=lambda: folder.lock_file,
        ) as children,
    ):
        choice = choose(root=Path("/"), environment=os.environ, get=MetadataClient().get, clock=clock)
        log.info(
            "cpu_figure_chosen", source=None if choice.cpu is None else choice.cpu.name, reason=choice.why
        )
        yield Adapters(
            clock=clock,
            randomness=SystemRandomness(),
            kinesis=FastKinesis(caller, build_kinesis(clients)),
            tables=build_tables(settings, clients, clock, updates),
            transactions=build_transactions(clients),
            children=children,
            log=log,
            cpu=choice.cpu,
            kinesis_clock=service_clock,
            cpu_host=choice.host,
            fan_out=build_fan_out(clients, caller),
            schemas=build_schemas(clients),
            dead_letters=dead_letters,
            cloudwatch=cloudwatch,
            state_folder=folder,
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


@asynccontextmanager
async def _dead_letters(settings: Settings) -> AsyncGenerator[DeadLetters | None, None]:
    destination = settings.failures.dead_letters
    if destination is None:
        yield None
    elif destination.box is LetterBox.FILE:
        file = DeadLetterFile(Path(destination.address))
        await file.prepare()
        yield file
    else:
        async with open_remote_dead_letters(destination, settings.endpoints) as letters:
            yield letters
