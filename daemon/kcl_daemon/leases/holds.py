"""Pauses and limits of operators, as one row (no counterpart in KCL)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Annotated, Final

from msgspec import Meta, Struct, ValidationError
from msgspec.json import Decoder, Encoder
from msgspec.structs import replace

from kcl_daemon.leases.lease import Lease
from kcl_daemon.leases.row import Row, RowDelete, RowPut, RowUpdate
from kcl_daemon.leases.text_row import TEXT, text_of, text_unchanged, text_write

HOLDS_KEY: Final = "daemon/holds"
_VERSION: Final = 1
# A part of a batch is worth so much of a second, and so much of a timer's delay is made up for: a limit is exceeded by
# both at most.
PART_S: Final = 0.25
_MADE_UP_S: Final = 0.1
_Ms = Annotated[int, Meta(ge=0, lt=253_402_300_800_000)]
_Amount = Annotated[float, Meta(ge=0, le=1e15)]
_Shards = Annotated[int, Meta(ge=0, le=10**9)]
_ENCODER: Final = Encoder()


class LimitUnit(StrEnum):
    RECORDS = "records"
    BYTES = "bytes"


class Hold(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A pause, or with a `unit` a limit.

    Args:
        stream: `account:name:creationEpoch`; without it and `lease_key` all are meant.
        by: user@host.
        until_ms: epoch milliseconds; None: until somebody ends it.
        amount: a second, over all shards.
        shards: how many unfinished leases share the amount.
    """

    by: str
    reason: str
    since_ms: _Ms
    until_ms: _Ms | None = None
    stream: str | None = None
    lease_key: str | None = None
    unit: LimitUnit | None = None
    amount: _Amount = 0.0
    shards: _Shards = 1

    @property
    def is_pause(self) -> bool:
        return self.unit is None

    @property
    def scope(self) -> tuple[str | None, str | None]:
        return self.stream, self.lease_key

    @property
    def share(self) -> float:
        return self.amount / max(1, self.shards)

    def is_over(self, now_ms: int) -> bool:
        return self.until_ms is not None and now_ms >= self.until_ms

    def covers(self, lease: Lease) -> bool:
        if self.lease_key is not None:
            return self.lease_key == lease.lease_key
        return self.stream is None or (lease.stream is not None and self.stream == str(lease.stream))

    def includes(self, other: Hold) -> bool:
        """Of the other the stream is known."""
        return self.lease_key in (None, other.lease_key) and self.stream in (None, other.stream)


class _Text(Struct, rename="camel"):
    version: int
    holds: tuple[Hold, ...]


class MalformedHoldsError(ValueError):
    """A row of a later version, or one that somebody else wrote."""


_DECODER: Final = Decoder(_Text)


def holds_from_row(row: Row | None) -> tuple[Hold, ...]:
    if row is None:
        return ()
    try:
        text = _DECODER.decode(text_of(row))
    except ValidationError as wrong:
        raise MalformedHoldsError(f"row {HOLDS_KEY}: {str(wrong)[:300]}") from wrong
    except (ValueError, RecursionError) as wrong:
        raise MalformedHoldsError(f"row {HOLDS_KEY}: {TEXT} holds no JSON: {wrong}") from wrong
    if text.version != _VERSION:
        raise MalformedHoldsError(f"row {HOLDS_KEY} has version {text.version}; this daemon knows {_VERSION}")
    if any(not hold.is_pause and hold.share <= 0 for hold in text.holds):
        raise MalformedHoldsError(f"row {HOLDS_KEY}: a limit must be above 0")
    return text.holds


def holds_write(
    before: Row | None, holds: Iterable[Hold], *, key_attribute: str
) -> RowPut | RowUpdate | RowDelete | None:
    """Without holds there is no row."""
    kept = tuple(sorted(holds, key=lambda hold: (hold.stream or "", hold.lease_key or "", hold.is_pause)))
    text = _ENCODER.encode(_Text(_VERSION, kept)).decode()
    if kept:
        return text_write(HOLDS_KEY, before, text, key_attribute=key_attribute)
    return None if before is None else RowDelete(HOLDS_KEY, text_unchanged(before))


def counted(holds: Iterable[Hold], leases: Iterable[Lease]) -> tuple[Hold, ...]:
    unfinished = [lease for lease in leases if not lease.is_finished]
    return tuple(
        hold if hold.is_pause else replace(hold, shards=max(1, sum(map(hold.covers, unfinished))))
        for hold in holds
    )


@dataclass(frozen=True, slots=True)
class LeaseHold:
    pause: Hold | None = None
    limits: tuple[Hold, ...] = ()

    @property
    def ends_ms(self) -> int | None:
        ends = [hold.until_ms for hold in (self.pause, *self.limits) if hold is not None]
        return min((end for end in ends if end is not None), default=None)

    def share(self, unit: LimitUnit) -> float:
        return min((hold.share for hold in self.limits if hold.unit is unit), default=inf)


NOT_HELD: Final = LeaseHold()


def lease_hold(holds: Iterable[Hold], lease: Lease, now_ms: int) -> LeaseHold:
    """Of several pauses the one that lasts longest is named."""
    covering = [hold for hold in holds if hold.covers(lease) and not hold.is_over(now_ms)]
    if not covering:
        return NOT_HELD
    pauses = [hold for hold in covering if hold.is_pause]
    longest = max(pauses, key=lambda hold: inf if hold.until_ms is None else hold.until_ms, default=None)
    return LeaseHold(longest, tuple(hold for hold in covering if not hold.is_pause))


@dataclass(frozen=True, slots=True)
class Pace:
    """When a shard under a limit may be given the next records; `amounts`: records and bytes a second."""

    amounts: tuple[float, float] = (inf, inf)
    free_s: float = -inf

    def at(self, amounts: tuple[float, float], now_s: float) -> Pace:
        """What is owed is paid back at the new rate; a lower one does not ask for more."""
        if amounts == self.amounts:
            return self
        both = [old / new for old, new in zip(self.amounts, amounts, strict=True) if old < inf and new < inf]
        return Pace(amounts, now_s + (self.free_s - now_s) * min(1.0, max(both)) if both else -inf)

    @property
    def part(self) -> tuple[float, float]:
        """The most records and bytes at once; a single record may have more."""
        return self.amounts[0] * PART_S, self.amounts[1] * PART_S

    def after(self, records: int, data_bytes: int, now_s: float) -> Pace:
        costs_s = max(records / self.amounts[0], data_bytes / self.amounts[1])
        return Pace(self.amounts, max(self.free_s, now_s - _MADE_UP_S) + costs_s)
