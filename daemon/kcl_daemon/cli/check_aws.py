"""Asks AWS whether a daemon could work: stream, tables and permissions. Writes nothing.

A permission to write is tried with a write whose condition cannot hold; what cannot be tried without an effect is named.
Owns which calls are tried and what is said about them; those about streams are in `check_streams`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from anyio import to_thread

from kcl_daemon.aws.build import build_consumers, build_kinesis, build_schemas, build_tables
from kcl_daemon.aws.session import Clients, open_clients, who_asks
from kcl_daemon.cli.check_streams import lease_findings, stream_findings
from kcl_daemon.cli.failures import describe
from kcl_daemon.cli.findings import Finding, not_tried, tried
from kcl_daemon.config.failure_settings import LetterBox
from kcl_daemon.config.metrics_settings import MetricsLevel
from kcl_daemon.config.settings import Settings
from kcl_daemon.errors import AwsError, SchemaNotFound
from kcl_daemon.leases.table import Equals, RowUpdate
from kcl_daemon.ports import StreamRef, Table
from kcl_daemon.ports_schemas import Schemas
from kcl_daemon.system import SystemClock

# No row has this key, and none has such an attribute.
_NO_ROW: Final = "kcl-daemon check"
# No version has this id.
_NO_SCHEMA: Final = "00000000-0000-0000-0000-000000000000"
_NEVER: Final = (Equals("kcl-daemon-check", "never"),)


async def look(settings: Settings) -> list[Finding]:
    """Everything that can be said without changing anything.

    Raises:
        ConfigurationError: there is no region, or region, profile or endpoint cannot be used.
        Unavailable: the instance, which was asked for the region, did not tell it.
        AccessDenied: there are no credentials.
    """
    async with open_clients(settings.endpoints, glue=settings.schemas.are_resolved) as clients:
        kinesis, consumers = build_kinesis(clients), build_consumers(clients)
        findings = await _identity(settings, clients)
        if settings.streams.name_filter is not None:
            listed = await tried(findings, "ListStreams", kinesis.list_streams)
            findings += [] if listed is None else [(True, f"ListStreams: {len(listed)} streams")]
        for stream in _streams(settings):
            findings += await stream_findings(settings, stream, kinesis, consumers)
        tables = build_tables(settings, clients, SystemClock())
        findings += await table_findings(tables.leases, indexed=True)
        findings += await lease_findings(settings, kinesis, tables.leases)
        for table in (tables.worker_metrics, tables.coordinator):
            findings += await table_findings(table, indexed=False)
        schemas = build_schemas(clients)
        if schemas is not None:
            findings += await _registry(schemas)
        return [*findings, *_figures(settings), *_dead_letters(settings)]


async def _identity(settings: Settings, clients: Clients) -> list[Finding]:
    """Where and as whom AWS is asked: the first question where a permission is missing."""
    places = [each.meta.endpoint_url for each in (clients.kinesis, clients.dynamodb)]
    where = f"in {clients.kinesis.meta.region_name} at {' and '.join(places)}"
    try:
        arn = await to_thread.run_sync(who_asks, settings.endpoints, abandon_on_cancel=True)
    except AwsError as error:
        return [(True, f"checked {where}"), not_tried("identity", f"STS did not answer: {describe(error)}")]
    return [(True, f"checked as {arn} {where}")]


def _streams(settings: Settings) -> tuple[StreamRef, ...]:
    many = tuple(StreamRef(each.name, each.arn) for each in settings.streams.listed)
    return many if settings.reads_many else (StreamRef(settings.stream_name, settings.stream_arn),)


async def table_findings(table: Table, *, indexed: bool) -> list[Finding]:
    """Whether the table is there and its rows can be read and written; a missing one is no failure.

    Args:
        table: one of the daemon's.
        indexed: whether it has the index by owner.
    """
    findings: list[Finding] = []
    state = await tried(findings, f"table {table.name}", table.describe)
    if state is None:
        missing = (
            f"table {table.name}: does not exist; the daemon creates it if needed; CreateTable and calls on "
            "its rows"
        )
        return findings or [not_tried(missing, "it would create a table")]
    findings.append((True, f"table {table.name}: exists"))
    row = {table.key_attribute: _NO_ROW}
    tries: list[tuple[str, Callable[[], Awaitable[object]]]] = [
        ("GetItem", lambda: table.get(_NO_ROW)),
        ("PutItem", lambda: table.put(row, _NEVER)),
        ("UpdateItem", lambda: table.update(RowUpdate(_NO_ROW, put={"checked": 1}, require=_NEVER))),
        ("DeleteItem", lambda: table.delete(_NO_ROW, _NEVER)),
        ("Scan", table.scan),
    ]
    if indexed:
        tries.append(("Query of the index by owner", lambda: table.owned_keys(_NO_ROW)))
    refused = len(findings)
    for name, attempt in tries:
        await tried(findings, f"table {table.name}: {name}", attempt)
    if len(findings) == refused:
        findings.append((True, f"table {table.name}: rows can be read and written"))
    return findings


async def _registry(schemas: Schemas) -> list[Finding]:
    findings: list[Finding] = []

    async def ask() -> None:
        with suppress(SchemaNotFound):  # an answer, as there can be none
            await schemas.schema(_NO_SCHEMA)

    await tried(findings, "schema registry", ask)
    return findings or [(True, "schema registry: GetSchemaVersion is allowed")]


def _dead_letters(settings: Settings) -> list[Finding]:
    """A queue or stream cannot be tried without a letter in it; what is not known must not look as if it were.

    A file is no matter of AWS: the daemon tries it when it starts.
    """
    destination = settings.failures.dead_letters
    if destination is None or destination.box is LetterBox.FILE:
        return []
    place = f"{destination.box.value} {destination.address}"
    return [not_tried(f"dead letters: {place}", "it would store a letter")]


def _figures(settings: Settings) -> list[Finding]:
    """CloudWatch has no figure that could be taken back, nor one that is refused by itself."""
    if settings.metrics.level is MetricsLevel.NONE:
        return []
    namespace = settings.metrics.namespace or settings.application_name
    return [not_tried(f"CloudWatch {namespace}: PutMetricData", "it would write a metric")]
