"""The typed settings of schemas: whether the daemon resolves them, and what becomes of records where it cannot."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class SchemaRegistry(Enum):
    """Whether records that carry the header of the Glue Schema Registry are opened; the values are words of the file."""

    OFF = "OFF"
    DECODE = "DECODE"


class SchemaFailure(Enum):
    """What becomes of a record whose schema is unknown or whose payload cannot be unpacked."""

    RETRY = "RETRY"
    PASSTHROUGH = "PASSTHROUGH"


@dataclass(frozen=True, slots=True)
class SchemaSettings:
    """Schemas of records.

    Args:
        registry: whether there is one.
        on_failure: what becomes of a record that cannot be opened. A registry that does not answer is no such failure:
            it is waited for in any case.
    """

    registry: SchemaRegistry = SchemaRegistry.OFF
    on_failure: SchemaFailure = SchemaFailure.RETRY

    @property
    def are_resolved(self) -> bool:
        """Whether the daemon asks a registry at all."""
        return self.registry is SchemaRegistry.DECODE
