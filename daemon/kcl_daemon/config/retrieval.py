"""Settings and properties of retrieval: polling, enhanced fan-out, and schemas."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from kcl_daemon.config.kinds import (
    INT_MAX,
    MILLISECONDS_OR_NONE,
    Key,
    choice,
    name,
    trimmed,
    truth,
    whole_number,
)
from kcl_daemon.config.properties import PropertyEntry


class RetrievalMode(Enum):
    """The values are KCL's; DEFAULT is resolved when the file is read."""

    FANOUT = "FANOUT"
    POLLING = "POLLING"


@dataclass(frozen=True, slots=True)
class RetrievalSettings:
    """Polling, except for `mode`.

    Args:
        idle_time_between_reads_ms: after a read at the tip.
        prefetch_bytes: reading pauses while this much waits for the child.
        prefetch_batches: likewise, in answers; 0: read only when the child waits.
        prefetch_records: likewise.
        reduced_tps_within_ms: see its key; 0: no limit.
    """

    max_records: int = 10_000
    idle_time_between_reads_ms: int = 1_500
    prefetch_bytes: int = 8 * 1024 * 1024
    prefetch_batches: int = 4
    prefetch_records: int = 30_000
    reduced_tps_within_ms: int = 0
    mode: RetrievalMode = RetrievalMode.POLLING


@dataclass(frozen=True, slots=True)
class FanOutSettings:
    """`consumer_arn`: register none. `consumer_name` None: the application's name."""

    consumer_arn: str | None = None
    consumer_name: str | None = None
    describe_stream_tries: int = 10
    describe_consumer_tries: int = 10
    register_tries: int = 10
    retry_backoff_ms: int = 1_000
    fallback_to_polling: bool = False


# They make DEFAULT mean polling (KCL: RetrievalMode). Any line sets the boxed ones, even to 0, which Java
# also takes for an unreadable value.
_OF_POLLING_BOXED: Final = ("retryGetRecordsInSeconds", "maxGetRecordsThreadPool")
_OF_POLLING: Final = (
    "maxRecords",
    "idleTimeBetweenReadsInMillis",
    "millisBehindLatestThresholdForReducedTps",
    *_OF_POLLING_BOXED,
)
_POLLING_PREFIX: Final = "pollingConfig."
_TRIES: Final = whole_number(1, INT_MAX, "tries")

RETRIEVAL_MODE: Final = Key(
    "retrievalMode",
    choice({**{mode.value: mode for mode in RetrievalMode}, "DEFAULT": None}),
    "retrieval.mode",
    "How shards are read: by enhanced fan-out, which Amazon charges for, or by polling. `DEFAULT` is `POLLING` where "
    "one of the properties of polling is set ("
    + ", ".join(f"`{each}`" for each in _OF_POLLING)
    + "), else `FANOUT`, as in Java. The last two count whatever their value is, the others unless it is 0.",
    default="DEFAULT",
)
FAN_OUT_KEYS: Final = (
    RETRIEVAL_MODE,
    Key(
        "fanoutConfig.consumerArn",
        name(
            r"arn:aws[a-z0-9-]*:kinesis:[!-~]{1,300}/consumer/[!-~]{1,200}",
            "the ARN of a consumer of the stream",
        ),
        "fan_out.consumer_arn",
        "Existing consumer to use; no consumer is registered.",
        default="none",
        blank_is_absent=True,
    ),
    Key(
        "fanoutConfig.consumerName",
        name(r"[A-Za-z0-9_.-]{1,128}", "1 to 128 letters, digits, dots, dashes and underscores"),
        "fan_out.consumer_name",
        "Name of the consumer; registered if it does not exist.",
        default="`applicationName`",
        blank_is_absent=True,
    ),
    Key(
        "fanoutConfig.maxDescribeStreamSummaryRetries",
        _TRIES,
        "fan_out.describe_stream_tries",
        "Number of tries of DescribeStreamSummary before one attempt to find the consumer fails.",
    ),
    Key(
        "fanoutConfig.maxDescribeStreamConsumerRetries",
        _TRIES,
        "fan_out.describe_consumer_tries",
        "The same for DescribeStreamConsumer, also while waiting for a new consumer to become ACTIVE.",
    ),
    Key(
        "fanoutConfig.registerStreamConsumerRetries",
        _TRIES,
        "fan_out.register_tries",
        "The same for RegisterStreamConsumer.",
    ),
    Key(
        "fanoutConfig.retryBackoffMillis",
        MILLISECONDS_OR_NONE,
        "fan_out.retry_backoff_ms",
        "Pause between these tries.",
    ),
    Key(
        "fanoutFallbackToPolling",
        truth(),
        "fan_out.fallback_to_polling",
        "Whether shards are polled if fan-out is not available: the stream has its maximum number of "
        "consumers, or permissions are missing.",
        extension=True,
    ),
)


def resolve_mode(values: dict[str, object], written: Iterable[PropertyEntry]) -> None:
    """Resolve `DEFAULT`, or no mode, in `values` (KCL: RetrievalMode)."""
    if values.get(RETRIEVAL_MODE.name) is None:
        polled = any(_is_about_polling(entry) for entry in written)
        values[RETRIEVAL_MODE.name] = RetrievalMode.POLLING if polled else RetrievalMode.FANOUT


def _is_about_polling(entry: PropertyEntry) -> bool:
    """As in Java, 0 counts as not set unless the property is boxed there."""
    name = entry.key.removeprefix(_POLLING_PREFIX)
    if name in _OF_POLLING_BOXED:
        return True
    return name in _OF_POLLING and bool(trimmed(entry.value).lstrip("+-0"))


class SchemaRegistry(Enum):
    OFF = "OFF"
    DECODE = "DECODE"


class SchemaFailure(Enum):
    """For an unknown schema or unreadable payload."""

    RETRY = "RETRY"
    PASSTHROUGH = "PASSTHROUGH"


@dataclass(frozen=True, slots=True)
class SchemaSettings:
    """`on_failure` is not for a registry that does not answer: then the shard waits."""

    registry: SchemaRegistry = SchemaRegistry.OFF
    on_failure: SchemaFailure = SchemaFailure.RETRY

    @property
    def are_resolved(self) -> bool:
        return self.registry is SchemaRegistry.DECODE


SCHEMA_REGISTRY: Final = Key(
    "schemaRegistry",
    choice({each.value: each for each in SchemaRegistry}),
    "schemas.registry",
    "`DECODE`: records with the header of the AWS Glue Schema Registry get the fields `schemaName`, "
    "`schemaVersionId`, `schemaDataFormat` and `schemaDefinition`; their data comes uncompressed and "
    "without the header. See [Schemas](schema-registry.md).",
    extension=True,
)
SCHEMA_FAILURE: Final = Key(
    "schemaRegistryFailure",
    choice({each.value: each for each in SchemaFailure}),
    "schemas.on_failure",
    "What happens to a record whose schema is not in the registry, or that cannot be unpacked. `RETRY`: "
    "the shard waits and the daemon tries again, with warnings. `PASSTHROUGH`: the record is delivered "
    "unchanged, with its header.",
    extension=True,
)
SCHEMA_KEYS: Final[tuple[Key, ...]] = (SCHEMA_REGISTRY, SCHEMA_FAILURE)
