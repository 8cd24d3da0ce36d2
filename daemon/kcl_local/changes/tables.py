"""The tables of moto as the source of changes.

moto keeps a list of changes for each table with a stream; `_Tap` stands in its place.
"""

from __future__ import annotations

import binascii
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Self, cast

import orjson
from moto.dynamodb.models import DynamoDBBackend, dynamodb_backends
from moto.dynamodb.models.dynamo_type import DynamoType
from moto.dynamodb.models.dynamo_type import Item as MotoItem
from moto.dynamodb.models.table import Table

from kcl_local import REGION
from kcl_local.changes.model import StreamsModel, table_arn_of
from kcl_local.changes.stream import Item
from kcl_local.kinesis.stream import ACCOUNT_ID

_NOT_SAID: Final[dict[str, Any]] = dict.fromkeys(
    (
        "throughput",
        "global_indexes",
        "indexes",
        "sse_specification",
        "tags",
        "deletion_protection_enabled",
        "warm_throughput",
    )
)
_PATCHED: Final = (
    (Table, "set_stream_specification"),
    (DynamoDBBackend, "update_table_streams"),
    (DynamoDBBackend, "delete_table"),
)


@dataclass(frozen=True, slots=True)
class NewTable:
    """`keys`: one or two attributes, all strings; `shards`: how many its streams begin with."""

    name: str
    shards: int = 1
    keys: tuple[str, ...] = ("id",)


class TableChanges:
    """Collects what is written until `settle`, as moto cannot take back the changes of a failed transaction."""

    def __init__(self, model: StreamsModel) -> None:
        self.model = model
        self._written: dict[tuple[str, bytes], tuple[Item | None, Item | None]] = {}

    def add(self, table_arn: str, keys: Sequence[str], old: Item | None, new: Item | None) -> None:
        """Moto may write an item twice in a call: the first old image and the last new one count."""
        item = new or old or {}
        place = (table_arn, orjson.dumps([item[name] for name in keys]))
        self._written[place] = (self._written[place][0] if place in self._written else old, new)

    def settle(self, *, happened: bool, by_ttl: bool = False) -> None:
        written, self._written = self._written, {}
        for (table_arn, _), (old, new) in written.items():
            if happened and self.model.is_enabled(table_arn):
                self.model.write(table_arn, old, new, by_ttl=by_ttl)

    def create(self, new: NewTable) -> None:
        """ValueError: there is such a table."""
        backend = dynamodb_backends[ACCOUNT_ID][REGION]
        if new.name in backend.tables:
            raise ValueError(f"there is a table {new.name} already")
        self.model.partitions[table_arn_of(new.name)] = new.shards
        backend.create_table(
            new.name,
            schema=[
                {"AttributeName": name, "KeyType": kind}
                for name, kind in zip(new.keys, ("HASH", "RANGE"), strict=False)
            ],
            attr=[{"AttributeName": name, "AttributeType": "S"} for name in new.keys],
            billing_mode="PAY_PER_REQUEST",
            streams={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
            **_NOT_SAID,
        )

    def switch(self, table: str, view_type: str | None) -> None:
        """KeyError: there is no such table. ValueError: the stream is on or off already."""
        found, backend = _found(table)
        if (view_type is not None) == self.model.is_enabled(found.table_arn):
            raise ValueError(
                f"the stream of table {table} is switched {'on' if view_type else 'off'} already"
            )
        backend.update_table_streams(
            found,
            {"StreamEnabled": True, "StreamViewType": view_type} if view_type else {"StreamEnabled": False},
        )

    def expire(self, table: str, key: Mapping[str, Mapping[str, str]]) -> None:
        """As its time to live does. KeyError: there is no such item."""
        found, _ = _found(table)
        hash_key, *rest = (DynamoType(dict(key[name])) for name in found.table_key_attrs)
        if found.delete_item(hash_key, rest[0] if rest else None) is None:
            raise KeyError(f"table {table} has no such item")
        self.settle(happened=True, by_ttl=True)


def _found(table: str) -> tuple[Table, DynamoDBBackend]:
    _, _, _, region, account, name = table_arn_of(table).split(":", 5)
    backend = dynamodb_backends[account][region]
    name = name.removeprefix("table/")
    if name not in backend.tables:
        raise KeyError(f"there is no table {table}")
    return backend.tables[name], backend


class _Tap:
    def __init__(self, table: Table, changes: TableChanges) -> None:
        self._table_arn = table.table_arn
        self._keys = tuple(table.table_key_attrs)
        self._changes = changes

    def add(self, old: MotoItem | None, new: MotoItem | None) -> None:
        self._changes.add(self._table_arn, self._keys, _json(old), _json(new))

    def __deepcopy__(self, _memo: object) -> Self:
        """Moto copies a table before a transaction, and puts the copy in its place if that fails."""
        return self


def _json(item: MotoItem | None) -> Item | None:
    return (
        None if item is None else orjson.loads(orjson.dumps(item.to_json()["Attributes"], default=_of_json))
    )


def _of_json(value: object) -> object:
    if isinstance(value, bytes):
        return binascii.b2a_base64(value, newline=False).decode()
    return list(cast("Iterable[object]", value))


@contextmanager
def following_tables(changes: TableChanges) -> Generator[None]:
    model = changes.model
    specify, update, delete = originals = [getattr(owner, name) for owner, name in _PATCHED]

    def set_stream_specification(table: Table, streams: dict[str, object] | None) -> None:
        specify(table, streams)
        if (table.stream_specification or {}).get("StreamEnabled"):
            stream = model.enable(
                table.table_arn, str((streams or {})["StreamViewType"]), keys=table.table_key_attrs
            )
            table.latest_stream_label = stream.label
            table.stream_shard = _Tap(table, changes)  # type: ignore[assignment]
        elif table.stream_shard is not None:
            table.stream_shard = None
            model.disable(table.table_arn)

    def update_table_streams(backend: DynamoDBBackend, table: Table, streams: dict[str, object]) -> None:
        if not model.is_enabled(table.table_arn):
            table.latest_stream_label = None  # else moto takes it for enabled
        update(backend, table, streams)

    def delete_table(backend: DynamoDBBackend, name: str) -> Table:
        deleted: Table = delete(backend, name)
        if model.is_enabled(deleted.table_arn):
            model.disable(deleted.table_arn)
        return deleted

    for (owner, name), ours in zip(
        _PATCHED, (set_stream_specification, update_table_streams, delete_table), strict=True
    ):
        setattr(owner, name, ours)
    try:
        yield
    finally:
        for (owner, name), original in zip(_PATCHED, originals, strict=True):
            setattr(owner, name, original)
