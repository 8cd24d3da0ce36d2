from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

from kcl_client._processor import Record
from kcl_protocol.sequence import ExtendedSequenceNumber

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_TRIES: Final = 8
_FIRST_PAUSE_S: Final = 0.05


class Stopped(Exception):
    """This process must do nothing more for its shard."""


class Fenced(Stopped):
    """A later reader of the shard has begun."""


class Moved(Stopped):
    """Somebody with the same token has moved the position: perhaps a child that was killed, with its last transaction."""


class TooMuch(Exception):
    """The output of these records does not fit into one transaction; nothing was stored."""


class Conflict(Exception):
    """Another transaction was in the way; nothing was stored, and it may be tried again."""


@dataclass(frozen=True, slots=True)
class Reader:
    """`token` is larger for each later reader of the same shard. `stream` is empty if there is one."""

    application: str
    stream: str
    shard: str
    token: int


@dataclass(frozen=True, slots=True)
class Stored:
    token: int
    position: ExtendedSequenceNumber | None


def refusal(reader: Reader, expected: ExtendedSequenceNumber | None, stored: Stored | None) -> Stopped:
    where = f"shard {reader.shard} of {reader.application}"
    if stored is not None and stored.token > reader.token:
        return Fenced(
            f"{where}: a later reader has begun, with token {stored.token}; this one has {reader.token} and stops"
        )
    found = "no row" if stored is None else stored.position or "no position"
    return Moved(
        f"{where}: the stored position is {found}, not {expected or 'none'}; this process stops, the next one reads it anew"
    )


class Store(Protocol[T_co]):
    """One object for each process; it connects in `begin`."""

    @property
    def application(self) -> str: ...

    @property
    def stream(self) -> str: ...

    def begin(self, reader: Reader) -> ExtendedSequenceNumber | None:
        """Store the token and read the position, in one transaction. Fenced: a larger token is there."""
        ...

    def commit(
        self,
        reader: Reader,
        before: ExtendedSequenceNumber | None,
        after: ExtendedSequenceNumber,
        work: Callable[[T_co], object],
    ) -> None:
        """Store what `work` writes, the token and the position `after`, or nothing of it.

        Raises:
            Stopped: the stored token is larger, or the stored position is not `before`.
            TooMuch, Conflict: as they say.
        """
        ...


class Once(Generic[T]):
    """`sleep` gets seconds."""

    def __init__(self, store: Store[T], reader: Reader, sleep: Callable[[float], object]) -> None:
        self._store = store
        self._reader = reader
        self._sleep = sleep
        self.position: ExtendedSequenceNumber | None = None

    def begin(self) -> ExtendedSequenceNumber | None:
        """From now on no earlier reader can store anything. Raises Fenced."""
        self.position = self._store.begin(self._reader)
        return self.position

    def process(
        self, records: Sequence[Record], work: Callable[[Sequence[Record], T], object]
    ) -> ExtendedSequenceNumber | None:
        """Store the output of the records that are not done yet, in as few transactions as possible.

        Raises:
            Stopped: as `Store.commit`.
            TooMuch: the output of a single record does not fit.
            Conflict: after the last try.
        """
        rest = [record for record in records if self.position is None or record.position > self.position]
        most = len(rest)
        while rest:
            part = rest[:most]
            try:
                self._commit(part[-1].position, partial(work, part))
            except TooMuch:
                if len(part) == 1:
                    raise
                most = len(part) // 2
            else:
                rest = rest[len(part) :]
        return self.position

    def _commit(self, after: ExtendedSequenceNumber, work: Callable[[T], object]) -> None:
        pause_s = _FIRST_PAUSE_S
        for _ in range(_TRIES - 1):
            try:
                self._store.commit(self._reader, self.position, after, work)
            except Conflict:
                self._sleep(pause_s)
                pause_s *= 2
            else:
                self.position = after
                return
        self._store.commit(self._reader, self.position, after, work)
        self.position = after
