from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from functools import partial
from typing import Final, Protocol

import anyio
from anyio import to_thread

from kcl_client import Record as ClientRecord
from kcl_client import schemas
from kcl_daemon.aws.build import build_schemas
from kcl_daemon.aws.session import Clients, make_clients
from kcl_daemon.config.services import Endpoints
from kcl_daemon.errors import AwsError, ConfigurationError, SchemaNotFound
from kcl_daemon.ports import Clock, Schema
from kcl_daemon.records import schema_header
from kcl_daemon.records.base64_text import BASE64
from kcl_daemon.records.content import SeenRecord, SeenSchema, json_of, uncompressed
from kcl_daemon.records.payload import AnyRecord, key_text
from kcl_daemon.records.schema_header import UnreadablePayload
from kcl_protocol.messages import Record, RecordSchema

_UNKNOWN_S: Final = 30.0
_JSON: Final = "JSON"


class SchemaSource(Protocol):
    async def schema(self, version_id: str) -> Schema | None: ...

    def close(self) -> None: ...


class Registry:
    """Asks Glue for each version once."""

    def __init__(self, endpoints: Endpoints, clock: Clock, say: Callable[[str], object]) -> None:
        self._endpoints = endpoints
        self._clock = clock
        self._say = say
        self._clients: Clients | None = None
        self._known: dict[str, Schema] = {}
        self._unknown: dict[str, float] = {}
        self._lock = anyio.Lock()
        self._said = False

    async def schema(self, version_id: str) -> Schema | None:
        async with self._lock:
            found = self._known.get(version_id)
            if found is not None or self._clock.monotonic() < self._unknown.get(version_id, 0.0):
                return found
            try:
                found = self._known[version_id] = await self._ask(version_id)
            except (AwsError, ConfigurationError) as error:
                self._unknown[version_id] = self._clock.monotonic() + _UNKNOWN_S
                if not self._said and not isinstance(error, SchemaNotFound):
                    self._said = True
                    self._say(f"the schema registry does not help, so records keep their headers: {error}")
            return found

    async def _ask(self, version_id: str) -> Schema:
        if self._clients is None:
            make = partial(make_clients, self._endpoints, glue=True)
            self._clients = await to_thread.run_sync(make, abandon_on_cancel=True)
        registry = build_schemas(self._clients)
        assert registry is not None, "a client of Glue was asked for"
        return await registry.schema(version_id)

    def close(self) -> None:
        if self._clients is not None:
            self._clients.close()


class Opener:
    def __init__(self, registry: SchemaSource, say: Callable[[str], object]) -> None:
        self._registry = registry
        self._say = say
        self._said: set[str] = set()

    async def opened(self, shard_id: str, record: AnyRecord) -> SeenRecord:
        record_schema, data = None, record.data
        text = schema_header.beginning(data)
        head = None if text is None else schema_header.header(text)
        if head is not None and (found := await self._registry.schema(head.version_id)) is not None:
            try:
                data, record_schema = schema_header.payload(data, head), found
            except UnreadablePayload as error:
                self._say_once("unreadable", f"a record keeps its schema header: {error}")
        try:
            body, compression = uncompressed(BASE64.decoded(data))
        except ValueError:
            body, compression = bytes(data), None  # such data does not come from the service
        seen = SeenRecord(
            shard_id,
            record.sequence_number,
            record.sub_sequence_number,
            key_text(record),
            record.approximate_arrival_timestamp,
            body,
            compression,
        )
        return seen if record_schema is None else self._decoded(seen, record_schema)

    def close(self) -> None:
        self._registry.close()

    def _decoded(self, seen: SeenRecord, schema: Schema) -> SeenRecord:
        body = seen.data
        if schema.data_format != _JSON:
            wire = Record(
                b64encode(body).decode("ascii"),
                seen.partition_key,
                seen.sequence_number,
                seen.arrival_ms,
                seen.sub_sequence_number,
                RecordSchema(schema.name, schema.version_id, schema.data_format, schema.definition),
            )
            try:
                body = json_of(_as_plain(schemas.decode(ClientRecord(wire))))
            except ImportError as error:
                self._say_once(schema.data_format, f"records are not decoded: {error}")
            except (ValueError, TypeError) as error:
                self._say_once("decode", f"a record is not decoded: {error}")
        return replace(seen, data=body, schema=SeenSchema(schema.name, schema.version_id, schema.data_format))

    def _say_once(self, what: str, text: str) -> None:
        if what not in self._said:
            self._said.add(what)
            self._say(text)


def _as_plain(value: object) -> object:
    if not hasattr(value, "DESCRIPTOR"):
        return value
    from google.protobuf.json_format import MessageToDict  # an optional extra
    from google.protobuf.message import Message

    assert isinstance(value, Message)
    return MessageToDict(value, preserving_proto_field_name=True)


@asynccontextmanager
async def open_opener(
    endpoints: Endpoints, clock: Clock, say: Callable[[str], object]
) -> AsyncGenerator[Opener, None]:
    with closing(Opener(Registry(endpoints, clock, say), say)) as opener:
        yield opener
