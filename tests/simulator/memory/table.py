"""The port `Table` in memory: DynamoDB's meaning without DynamoDB.

Owns the rows. Every call does all of its work at once and waits for nothing. Knows no clock, no failure and no delay;
a lagging index is for the caller to bring about.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal
from types import MappingProxyType
from typing import Final, assert_never

from kcl_daemon.aws.dynamodb import check_key, check_update, number, number_text
from kcl_daemon.errors import InvalidRequest, TableNotFound
from kcl_daemon.leases.row import OWNER, Conditions, Row, RowUpdate, Value, WriteResult
from kcl_daemon.ports import IndexState, TableState
from tests.simulator.memory.updates import apply_update, holds

# A whole number below this has no more digits than DynamoDB keeps.
_SMALL: Final = 10**38

Deferral = Callable[[Callable[[], None]], object]


def at_once(change: Callable[[], None]) -> None:
    """The deferral of an index that never lags."""
    change()


class MemoryTable:
    """A table of one account, shared by all who hold it.

    Args:
        name: its name.
        key_attribute: its key.
        has_owner_index: whether it has the index by lease owner.
        defer_index: called with each change of the index; whoever gives one calls the change whenever the index is to
            show it. Changes may be carried out in any order, or never.
        defer_build: called once with what makes an added index ready.

    Attributes:
        has_recovery: whether point-in-time recovery is on.
        differences: as `describe` tells them.
    """

    def __init__(
        self,
        name: str,
        key_attribute: str,
        has_owner_index: bool = False,
        *,
        defer_index: Deferral = at_once,
        defer_build: Deferral = at_once,
    ) -> None:
        self._name = name
        self._key_attribute = key_attribute
        self._has_owner_index = has_owner_index
        self._defer_index = defer_index
        self._defer_build = defer_build
        self.has_recovery = False
        self.differences: tuple[str, ...] = ()
        self._exists = False
        self._index = IndexState.ABSENT
        self._rows: dict[str, Row] = {}
        self._owners: dict[str, str] = {}
        self._writes = 0
        self._shown: dict[str, int] = {}

    @property
    def name(self) -> str:
        """As the port says."""
        return self._name

    @property
    def key_attribute(self) -> str:
        """As the port says."""
        return self._key_attribute

    async def describe(self) -> TableState | None:
        """As the port says."""
        return TableState(self._index, self.differences) if self._exists else None

    async def ensure(self) -> bool:
        """As the port says; the table can be used at once."""
        created = not self._exists
        self._exists = True
        if created and self._has_owner_index:
            self._index = IndexState.ACTIVE
        return created

    def drop(self) -> None:
        """Be deleted, with all rows."""
        self._exists, self._index = False, IndexState.ABSENT
        for key in list(self._rows):
            self._store(key, None)

    def exist_without_index(self) -> None:
        """Have been made by somebody who did not make the index; or, of a table in use, lose it."""
        self._exists = True
        self._index = IndexState.ABSENT

    async def add_owner_index(self) -> None:
        """As the port says; ready when `defer_build` says so."""
        self._require_table("UpdateTable")
        if self._index is not IndexState.ABSENT:
            raise InvalidRequest("there is an index of that name", operation="UpdateTable")
        self._index = IndexState.BUILDING
        self._defer_build(self._built)

    async def remove_owner_index(self) -> None:
        """As the port says; gone at once."""
        self._require_table("UpdateTable")
        if self._index is IndexState.ABSENT:
            raise InvalidRequest("there is no such index", operation="UpdateTable")
        self._index = IndexState.ABSENT

    def _built(self) -> None:
        if self._index is IndexState.BUILDING:
            self._index = IndexState.ACTIVE

    async def enable_recovery(self) -> None:
        """As the port says."""
        self._require_table("UpdateContinuousBackups")
        self.has_recovery = True

    async def get(self, key: str) -> Row | None:
        """As the port says."""
        self._require_table("GetItem")
        return self._rows.get(self._checked(key))

    async def scan(self) -> list[Row]:
        """As the port says; in the order in which the rows were created."""
        self._require_table("Scan")
        return list(self._rows.values())

    async def owned_keys(self, owner: str) -> list[str]:
        """As the port says."""
        self._require_table("Query")
        if self._index is not IndexState.ACTIVE:
            raise TableNotFound(f"table {self._name} has no index by owner that is ready", operation="Query")
        return sorted(key for key, shown in self._owners.items() if shown == owner)

    async def put(self, row: Row, require: Conditions = ()) -> WriteResult:
        """As the port says."""
        self._require_table("PutItem")
        key = self._checked(row.get(self._key_attribute))
        frozen = frozen_row(row)
        old = self._rows.get(key)
        if not _all_hold(require, old):
            return WriteResult(applied=False, row=old)
        self._store(key, frozen)
        return WriteResult(applied=True, row=frozen)

    async def update(self, update: RowUpdate) -> WriteResult:
        """As the port says."""
        self._require_table("UpdateItem")
        check_update(update, key_attribute=self._key_attribute)
        frozen = replace(update, put=frozen_row(update.put))
        try:
            written = apply_update(frozen, self._rows.get(update.key), key_attribute=self._key_attribute)
        except TypeError as error:
            raise InvalidRequest(str(error), operation="UpdateItem") from error
        if not written.applied or written.row is None:
            return written
        row = MappingProxyType({**written.row, **_raised(update, written.row)} if update.add else written.row)
        self._store(update.key, row)
        return WriteResult(applied=True, row=row)

    async def delete(self, key: str, require: Conditions = ()) -> WriteResult:
        """As the port says."""
        self._require_table("DeleteItem")
        old = self._rows.get(self._checked(key))
        if not _all_hold(require, old):
            return WriteResult(applied=False, row=old)
        self._store(key, None)
        return WriteResult(applied=True, row=None)

    def _require_table(self, operation: str) -> None:
        if not self._exists:
            raise TableNotFound(f"table {self._name} does not exist", operation=operation)

    def _checked(self, key: object) -> str:
        return check_key(key, key_attribute=self._key_attribute)

    def _store(self, key: str, row: Row | None) -> None:
        before = self._rows.pop(key, None) if row is None else self._rows.get(key)
        if row is not None:
            self._rows[key] = row
        owner = None if row is None else row.get(OWNER)
        if owner == (None if before is None else before.get(OWNER)):
            return  # the index has only the owner; nothing of this write reaches it
        self._writes += 1
        write = self._writes
        self._defer_index(lambda: self._show(key, owner, write))

    def _show(self, key: str, owner: Value | None, write: int) -> None:
        """Let the index show a write; one that comes after a later one of the same row is late and changes nothing."""
        if self._shown.get(key, 0) > write:
            return
        self._shown[key] = write
        if isinstance(owner, str):
            self._owners[key] = owner
        else:
            self._owners.pop(key, None)


def frozen_row(row: Row) -> Row:
    """A copy that nobody can change, with numbers as rows are read from DynamoDB.

    Raises:
        InvalidRequest: DynamoDB could not store it.
    """
    return MappingProxyType({name: _frozen(value, name) for name, value in row.items()})


def _frozen(value: Value, where: str) -> Value:
    if type(value) is int and -_SMALL < value < _SMALL:
        return value  # as the rest would find out, at length
    match value:
        case str() | bytes():
            return value
        case int() | Decimal():
            number_text(value, where)
            return number(value)
        case frozenset():
            if not value:
                raise InvalidRequest(f"{where}: a set must not be empty; remove the attribute instead")
            return value
        case tuple():
            return tuple(_frozen(each, where) for each in value)
        case Mapping():
            return MappingProxyType({name: _frozen(each, where) for name, each in value.items()})
        case _:
            assert_never(value)


def _raised(update: RowUpdate, row: Row) -> dict[str, Value]:
    """The sums of an update, in the form in which numbers are read."""
    sums: dict[str, Value] = {}
    for name in update.add:
        value = row[name]
        assert isinstance(value, int | Decimal), f"{name} of row {update.key} is no number: {value!r}"
        sums[name] = number(value)
    return sums


def _all_hold(require: Conditions, row: Row | None) -> bool:
    return all(holds(condition, row) for condition in require)
