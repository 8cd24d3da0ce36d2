"""The properties that say how shards are read, and those of enhanced fan-out.

Owns the rule of Java's DEFAULT mode: which properties are about polling. Pure data.

The typed settings of enhanced fan-out, and how shards are read at all.

The typed settings of schemas: whether the daemon resolves them, and what becomes of records where it cannot.

The properties of schemas. Pure data, part of the table in `keys`; where Glue is, is in `keys_services`.
"""

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
    """How records come; the values are KCL's. Its third, DEFAULT, is resolved when the file is read."""

    FANOUT = "FANOUT"
    POLLING = "POLLING"


@dataclass(frozen=True, slots=True)
class RetrievalSettings:
    """How shards are read.

    Args:
        max_records: Limit of GetRecords, 1 to 10,000.
        idle_time_between_reads_ms: pause between two reads of a shard that has nothing more to give.
        prefetch_bytes: no further read of a shard while this much waits for its child.
        prefetch_batches: no further read of a shard while this many answers wait for its child; 0: none before the
            child waits for it.
        prefetch_records: no further read of a shard while this many records wait for its child.
        reduced_tps_within_ms: a shard less than this behind is read no more often than that; 0: no such rule.
        mode: by fan-out or by polling; all else here is about polling.
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
    """The consumer that subscriptions belong to.

    Args:
        consumer_arn: use this one and register none.
        consumer_name: find or register one of that name; None: that of the application.
        describe_stream_tries: how often the stream is asked about in one attempt to find the consumer.
        describe_consumer_tries: how often the consumer is, also while it becomes ACTIVE.
        register_tries: how often it is tried to register one.
        retry_backoff_ms: pause between two of these tries.
        fallback_to_polling: poll where no consumer can be had.
    """

    consumer_arn: str | None = None
    consumer_name: str | None = None
    describe_stream_tries: int = 10
    describe_consumer_tries: int = 10
    register_tries: int = 10
    retry_backoff_ms: int = 1_000
    fallback_to_polling: bool = False


# What makes DEFAULT mean polling (KCL: RetrievalMode), with and without the prefix. Java reads the boxed ones no more,
# but being boxed they are set by any line: to 0, too, which is what Java takes for an empty or unreadable value.
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
    """Put the mode that `DEFAULT`, or no line, means into `values` (KCL: RetrievalMode).

    Args:
        values: by key name.
        written: all entries of the file.
    """
    if values.get(RETRIEVAL_MODE.name) is None:
        polled = any(_is_about_polling(entry) for entry in written)
        values[RETRIEVAL_MODE.name] = RetrievalMode.POLLING if polled else RetrievalMode.FANOUT


def _is_about_polling(entry: PropertyEntry) -> bool:
    """Whether it sets a property of polling; 0 counts as not set, as in Java, but for what is boxed there."""
    name = entry.key.removeprefix(_POLLING_PREFIX)
    if name in _OF_POLLING_BOXED:
        return True
    return name in _OF_POLLING and bool(trimmed(entry.value).lstrip("+-0"))


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
