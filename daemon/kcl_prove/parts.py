from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal

Kind = Literal["stream", "table", "consumer", "schema registry", "fis template", "files"]
"""Each has its name, but a `consumer` its ARN, an `fis template` its tag `Name`, `files` a path."""


class ProveError(Exception):
    """The text says what to do."""


class BudgetReached(ProveError): ...


@dataclass(frozen=True, slots=True)
class Usage:
    """What AWS charges for; an hour counts as soon as it has begun."""

    shard_hours: float = 0.0
    on_demand_stream_hours: float = 0.0
    on_demand_in_gb: float = 0.0
    on_demand_out_gb: float = 0.0
    put_units: float = 0.0
    fan_out_shard_hours: float = 0.0
    fan_out_gb: float = 0.0
    dynamodb_writes: float = 0.0
    dynamodb_reads: float = 0.0
    fis_action_minutes: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            **{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)}
        )


@dataclass(frozen=True, slots=True)
class Size:
    records: int
    workers: int
    shards: int
    seconds: float


@dataclass(frozen=True, slots=True)
class SceneResult:
    """Counts are records.

    Args:
        left_out: why it was not played.
        gap_ms: the longest time in which a shard with records delivered none.
    """

    name: str
    passed: bool
    seconds: float = 0.0
    left_out: str = ""
    written: int = 0
    delivered: int = 0
    lost: int = 0
    repeated: int = 0
    out_of_order: int = 0
    before_parents: int = 0
    gap_ms: float | None = None
    latency_p50_ms: float | None = None
    latency_p99_ms: float | None = None
    requests: Mapping[str, int] = field(default_factory=dict[str, int])
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Options:
    """`endpoints`: by service; empty: AWS itself."""

    region: str
    endpoints: Mapping[str, str]
    size: Size
    java_classpath: str | None = None
    fis_role: str | None = None
    most_dollars: float = 5.0

    @property
    def is_local(self) -> bool:
        return bool(self.endpoints)
