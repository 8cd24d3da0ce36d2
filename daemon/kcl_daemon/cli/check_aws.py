"""Asks AWS whether a daemon could work: stream, tables and permissions. Writes nothing.

A permission to write is tried with a write whose condition cannot hold. Owns which calls are tried and what is said
about them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

from kcl_daemon.aws.build import build_kinesis, build_schemas, build_tables
from kcl_daemon.aws.session import open_clients
from kcl_daemon.cli.failures import advice_for, describe
from kcl_daemon.config.failure_settings import LetterBox
from kcl_daemon.config.fan_out_settings import RetrievalMode
from kcl_daemon.config.settings import Settings
from kcl_daemon.errors import AwsError, SchemaNotFound
from kcl_daemon.leases.table import Equals, RowUpdate
from kcl_daemon.observe.redact import masked, on_one_line
from kcl_daemon.ports import IteratorKind, Kinesis, ReadFrom, StreamRef, Table
from kcl_daemon.ports_schemas import Schemas
from kcl_daemon.system import SystemClock

_T = TypeVar("_T")

Finding = tuple[bool, str]
"""Whether it is good, and one line about it."""

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
        kinesis, findings = build_kinesis(clients), list[Finding]()
        if settings.streams.name_filter is not None:
            listed = await _try(findings, "ListStreams", kinesis.list_streams)
            findings += [] if listed is None else [(True, f"ListStreams: {len(listed)} streams")]
        for stream in _streams(settings):
            findings += await _stream(settings, stream, kinesis)
        tables = build_tables(settings, clients, SystemClock())
        findings += await _table(tables.leases, indexed=True)
        for table in (tables.worker_metrics, tables.coordinator):
            findings += await _table(table, indexed=False)
        schemas = build_schemas(clients)
        if schemas is not None:
            findings += await _registry(schemas)
        return [*findings, *_dead_letters(settings)]


def _streams(settings: Settings) -> tuple[StreamRef, ...]:
    many = tuple(StreamRef(each.name, each.arn) for each in settings.streams.listed)
    return many if settings.reads_many else (StreamRef(settings.stream_name, settings.stream_arn),)


async def _stream(settings: Settings, stream: StreamRef, kinesis: Kinesis) -> list[Finding]:
    findings: list[Finding] = []
    summary = await _try(findings, f"stream {stream.name}", lambda: kinesis.describe_stream(stream))
    if summary is None:
        return findings
    findings.append((summary.status in {"ACTIVE", "UPDATING"}, f"stream {summary.name}: {summary.status}"))
    shards = await _try(findings, "ListShards", lambda: kinesis.list_shards(stream))
    if not shards:
        return findings
    findings.append((True, f"ListShards: {len(shards)} shards"))
    if settings.retrieval.mode is RetrievalMode.FANOUT:
        return findings
    shard_id, newest = shards[-1].shard_id, ReadFrom(IteratorKind.LATEST)
    iterator = await _try(
        findings, "GetShardIterator", lambda: kinesis.get_shard_iterator(stream, shard_id, newest)
    )
    if iterator is not None:
        read = partial(kinesis.get_records, stream, shard_id, iterator, 1)
        if await _try(findings, "GetRecords", read) is not None:
            findings.append((True, "GetRecords: allowed"))
    return findings


async def _table(table: Table, *, indexed: bool) -> list[Finding]:
    findings: list[Finding] = []
    state = await _try(findings, f"table {table.name}", table.describe)
    if state is None:
        missing = (True, f"table {table.name}: not there; the daemon makes it where it needs it")
        return findings or [missing]
    findings.append((True, f"table {table.name}: there"))
    row = {table.key_attribute: _NO_ROW}
    tries: list[tuple[str, Callable[[], Awaitable[object]]]] = [
        ("GetItem", lambda: table.get(_NO_ROW)),
        ("PutItem", lambda: table.put(row, _NEVER)),
        ("UpdateItem", lambda: table.update(RowUpdate(_NO_ROW, put={"checked": 1}, require=_NEVER))),
        ("DeleteItem", lambda: table.delete(_NO_ROW, _NEVER)),
    ]
    if indexed:
        tries.append(("Query of the index by owner", lambda: table.owned_keys(_NO_ROW)))
    refused = len(findings)
    for name, attempt in tries:
        await _try(findings, f"table {table.name}: {name}", attempt)
    if len(findings) == refused:
        findings.append((True, f"table {table.name}: rows can be read and written"))
    return findings


async def _registry(schemas: Schemas) -> list[Finding]:
    findings: list[Finding] = []

    async def ask() -> None:
        with suppress(SchemaNotFound):  # an answer, as there can be none
            await schemas.schema(_NO_SCHEMA)

    await _try(findings, "schema registry", ask)
    return findings or [(True, "schema registry: GetSchemaVersion is allowed")]


def _dead_letters(settings: Settings) -> list[Finding]:
    """A queue or stream cannot be tried without a letter in it; what is not known must not look as if it were.

    A file is no matter of AWS: the daemon tries it when it starts.
    """
    destination = settings.failures.dead_letters
    if destination is None or destination.box is LetterBox.FILE:
        return []
    place = f"{destination.box.value} {masked(destination.address)}"
    return [(True, f"dead letters: {place}: NOT TRIED, as a try would leave a letter there")]


async def _try(findings: list[Finding], what: str, attempt: Callable[[], Awaitable[_T]]) -> _T | None:
    """What it gives; None, and a finding, where AWS refuses it."""
    try:
        return await attempt()
    except AwsError as error:
        findings.append((False, masked(on_one_line(f"{what}: {describe(error)}; {advice_for(error)}"))))
        return None
