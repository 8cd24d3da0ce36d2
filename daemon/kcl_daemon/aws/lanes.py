"""How many calls of each kind may be under way: the one place that weighs kinds of traffic against each other.

Lease writes have a lane of their own because a renewal that waits behind slow reads is a lost lease.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from kcl_daemon.aws.calls import Lane
from kcl_daemon.errors import SchemaNotFound, StreamNotFound, TableNotFound

# One renewal takes some 10 ms, so that 8 at a time renew 2,400 leases in the 3 s between two renewals.
_LEASE_WRITES: Final = 8
# Leader lock, worker rows and table creation.
_OTHER_WRITES: Final = 2
_READS: Final = 4
# More threads parsing answers would only wait for each other, and each may hold an answer of 10 MiB.
_KINESIS_CALLS: Final = 8
# Each schema is asked for once.
_SCHEMA_CALLS: Final = 2

DYNAMODB_CONNECTIONS: Final = _LEASE_WRITES + _OTHER_WRITES + _READS
KINESIS_CONNECTIONS: Final = _KINESIS_CALLS
GLUE_CONNECTIONS: Final = _SCHEMA_CALLS


@dataclass(frozen=True, slots=True)
class TableLanes:
    """The lanes of one table's calls; reads and writes may each be shared with other tables."""

    reads: Lane
    writes: Lane


def _table_lane(slots: int) -> Lane:
    return Lane(slots, not_found=TableNotFound)


def _kinesis_lane() -> Lane:
    return Lane(_KINESIS_CALLS, not_found=StreamNotFound)


def _schema_lane() -> Lane:
    return Lane(_SCHEMA_CALLS, not_found=SchemaNotFound)


@dataclass(frozen=True, slots=True)
class Lanes:
    """All lanes of one daemon."""

    lease_writes: Lane = field(default_factory=lambda: _table_lane(_LEASE_WRITES))
    other_writes: Lane = field(default_factory=lambda: _table_lane(_OTHER_WRITES))
    reads: Lane = field(default_factory=lambda: _table_lane(_READS))
    kinesis: Lane = field(default_factory=_kinesis_lane)
    schemas: Lane = field(default_factory=_schema_lane)

    @property
    def leases(self) -> TableLanes:
        """Of the lease table."""
        return TableLanes(self.reads, self.lease_writes)

    @property
    def others(self) -> TableLanes:
        """Of the other tables."""
        return TableLanes(self.reads, self.other_writes)
