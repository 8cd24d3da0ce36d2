"""Rows that hold one state of the whole application, who set it, and what it was before (KCL: MigrationState).

Two migrations keep their state like this; what their states mean is not known here. The only place that knows the
attributes which such rows have in common.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, TypeVar

from kcl_daemon.leases.table import Absent, Conditions, Equals, Present, Row, RowUpdate, Value

HISTORY_MOST: Final = 10
"""So many earlier states are kept."""

ENTITY: Final = "entityType"
_BY: Final = "mb"
_AT: Final = "mts"
_HISTORY: Final = "h"

_State = TypeVar("_State", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Nothing is done: what is in the way, and what a person can do about it."""

    problem: str
    advice: str


@dataclass(frozen=True, slots=True)
class Past:
    """An earlier state: its wire name, who set it, when in epoch milliseconds."""

    state: str
    by: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class StateRow(Generic[_State]):
    """A state, who set it, when in epoch milliseconds, and the states before, newest first."""

    state: _State
    by: str
    at_ms: int
    history: tuple[Past, ...] = ()

    def followed_by(self, state: _State, *, by: str, at_ms: int) -> StateRow[_State]:
        """The row after a change; its history gains this state and loses what is older than the ten latest."""
        past = Past(str(self.state), self.by, self.at_ms)
        return StateRow(state, by, at_ms, (past, *self.history)[:HISTORY_MOST])


@dataclass(frozen=True, slots=True)
class Creation:
    """A whole row to put, if the conditions hold."""

    row: Row
    require: Conditions


@dataclass(frozen=True, slots=True)
class StateCodec(Generic[_State]):
    """How one kind of these rows is read and written.

    Args:
        row_key: value of its key attribute; that attribute's name depends on the table.
        entity: its `entityType`, absent on rows up to KCL 3.4.
        attribute: the state's attribute, in the row and in each entry of the history.
        states: those that a row may hold.
    """

    row_key: str
    entity: str
    attribute: str
    states: tuple[_State, ...]

    def read(self, row: Row | None) -> StateRow[_State] | Refusal | None:
        """The state in a row, None where there is no row. What cannot be read is refused, not taken for absent.

        Entries of the history that cannot be read are left out: they are for people.
        """
        if row is None:
            return None
        if row.get(ENTITY, self.entity) != self.entity:
            return self._refused(ENTITY, row)
        known = {str(state): state for state in self.states}
        name = row.get(self.attribute)
        if not isinstance(name, str) or name not in known:
            return self._refused(self.attribute, row)
        by, at_ms = row.get(_BY), row.get(_AT)
        if not isinstance(by, str):
            return self._refused(_BY, row)
        if not isinstance(at_ms, int):
            return self._refused(_AT, row)
        return StateRow(known[name], by, at_ms, self._past(row.get(_HISTORY)))

    def row(self, state: StateRow[_State], *, key_attribute: str) -> Row:
        """The whole row."""
        return {key_attribute: self.row_key, ENTITY: self.entity, **self._attributes(state)}

    def creation(self, state: StateRow[_State], *, key_attribute: str) -> Creation:
        """The write that makes the row where none is."""
        return Creation(self.row(state, key_attribute=key_attribute), (Absent(key_attribute),))

    def update(self, before: StateRow[_State], after: StateRow[_State], *, key_attribute: str) -> RowUpdate:
        """The write that replaces the state, refused unless the row still holds the one before."""
        return RowUpdate(
            self.row_key,
            put=self._attributes(after),
            require=(Present(key_attribute), self.holds(before.state)),
        )

    def holds(self, state: _State) -> Equals:
        """The condition that the row holds a state."""
        return Equals(self.attribute, state.value)

    def _attributes(self, state: StateRow[_State]) -> dict[str, Value]:
        written: dict[str, Value] = {self.attribute: state.state.value, _BY: state.by, _AT: state.at_ms}
        if state.history:
            written[_HISTORY] = tuple(
                {self.attribute: past.state, _BY: past.by, _AT: past.at_ms} for past in state.history
            )
        return written

    def _past(self, entries: Value | None) -> tuple[Past, ...]:
        if not isinstance(entries, tuple):
            return ()
        history: list[Past] = []
        for entry in entries:
            if isinstance(entry, Mapping):
                state, by, at_ms = entry.get(self.attribute), entry.get(_BY), entry.get(_AT)
                if isinstance(state, str) and isinstance(by, str) and isinstance(at_ms, int):
                    history.append(Past(state, by, at_ms))
        return tuple(history)

    def _refused(self, attribute: str, row: Row) -> Refusal:
        found = repr(row[attribute])[:80] if attribute in row else "nothing"
        return Refusal(
            f"row {self.row_key}: {attribute} holds {found}",
            f"it was written by a newer version or by hand; {self.attribute} should be one of "
            f"{', '.join(str(state) for state in self.states)}, with {_BY} and {_AT}",
        )
