from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Final

from kcl_daemon.config.kinds import (
    INT_MAX,
    LONG_MAX,
    MILLISECONDS,
    MILLISECONDS_OR_NONE,
    Form,
    InvalidValue,
    Key,
    ValueKind,
    choice,
    java,
    keys,
    member,
    name,
    not_blank,
    ours,
    trimmed,
    truth,
    whole_number,
)
from kcl_daemon.config.properties import PropertyEntry

if TYPE_CHECKING:
    from kcl_daemon.records.record_filter import RecordFilter

FASTEST_READS_MS: Final = 200  # KCL: PollingConfig; Kinesis' limit for all readers of a shard
SLOWEST_AUTO_MS: Final = 2_000
# They make DEFAULT mean polling (KCL: RetrievalMode). Any line sets the boxed ones, even to 0, which Java
# also takes for an unreadable value.
_OF_POLLING_BOXED: Final = ("retryGetRecordsInSeconds", "maxGetRecordsThreadPool")
_OF_POLLING: Final = (
    "maxRecords",
    "idleTimeBetweenReadsInMillis",
    "millisBehindLatestThresholdForReducedTps",
    *_OF_POLLING_BOXED,
)
_POLLING: Final = "pollingConfig"
_TRIES: Final = whole_number(1, INT_MAX, "tries")
_CONSUMER_ARN: Final = name(
    r"arn:aws[a-z0-9-]*:kinesis:[!-~]{1,300}/consumer/[!-~]{1,200}", "the ARN of a consumer of the stream"
)
_CONSUMER_NAME: Final = name(
    r"[A-Za-z0-9_.-]{1,128}",
    "1 to 128 letters, digits, dots, dashes and underscores",
    "fanoutConfig.consumerArn",
)


class RetrievalMode(Enum):
    FANOUT = "FANOUT"
    POLLING = "POLLING"


_MODE: Final[ValueKind[RetrievalMode | None]] = choice(
    {**{mode.value: mode for mode in RetrievalMode}, "DEFAULT": None}
)


def _pause_or_auto() -> ValueKind[int | None]:
    def read(text: str) -> int | None:
        return None if trimmed(text).lower() == "auto" else MILLISECONDS_OR_NONE.read(text)

    return ValueKind(
        read,
        f"{MILLISECONDS_OR_NONE.allowed}, or auto",
        lambda it: "auto" if it is None else str(it),
        replace(MILLISECONDS_OR_NONE.form, words=("auto",)),
    )


@dataclass(frozen=True, slots=True)
class RetrievalSettings:
    max_records: int = java("maxRecords", whole_number(1, 10_000, "records"), 10_000, bean=_POLLING)
    """Maximum number of records in one read."""
    idle_time_between_reads_ms: int | None = java(
        "idleTimeBetweenReadsInMillis", _pause_or_auto(), 1_500, bean=_POLLING
    )
    """Pause between two reads of a shard. Values below 200 are raised to 200, and 0 means the default; both
    log a warning. `auto`, which the Java daemon does not know: 200 ms while there are records, up to 2 s while there
    are none, and less often where other applications read the same shard
    ([reading quickly](scaling.md#reading-quickly))."""
    reduced_tps_within_ms: int = java(
        "millisBehindLatestThresholdForReducedTps", MILLISECONDS_OR_NONE, 0, bean=_POLLING
    )
    """Minimum time between two reads of a shard that is less than this behind. 0: no limit."""
    prefetch_batches: int = ours("maxPendingProcessRecordsInput", whole_number(0, INT_MAX, "answers"), 4)
    """Reading of a shard pauses while this many answers wait for its child. 0: the next read starts only when
    the child is ready for it."""
    prefetch_bytes: int = ours("prefetchMaxBytes", whole_number(1, LONG_MAX, "bytes"), 8 * 1024 * 1024)
    """Reading of a shard pauses while this much data waits for its child."""
    prefetch_records: int = 30_000
    mode: RetrievalMode = field(
        default=RetrievalMode.POLLING, metadata=keys(Key("retrievalMode", _MODE, default="DEFAULT"))
    )
    """How shards are read: by enhanced fan-out, which Amazon charges for, or by polling. `DEFAULT` is
    `POLLING` where one of the properties of polling is set (`maxRecords`, `idleTimeBetweenReadsInMillis`,
    `millisBehindLatestThresholdForReducedTps`, `retryGetRecordsInSeconds`, `maxGetRecordsThreadPool`), else
    `FANOUT`, as in Java. The last two count whatever their value is, the others unless it is 0."""


def _record_filter() -> ValueKind[RecordFilter]:
    def read(text: str) -> RecordFilter:
        from kcl_daemon.records.event_pattern import PatternError
        from kcl_daemon.records.record_filter import RecordFilter

        try:
            return RecordFilter.of(not_blank(text))
        except PatternError as wrong:
            raise InvalidValue(str(wrong)) from None

    allowed = 'a pattern, an array of patterns, or {"Filters": [{"Pattern": ...}]}, in JSON'
    return ValueKind(read, allowed, form=Form(r"[\[{][\s\S]*", type="json"))


@dataclass(frozen=True, slots=True)
class DeliverySettings:
    record_filter: RecordFilter | None = ours("recordFilter", _record_filter(), None)
    """Which records are for the child, in EventBridge's pattern language as AWS Lambda has it for Kinesis and DynamoDB,
    such as `{"data": {"order": {"type": ["new"]}}}` ([filter](flow.md#filter)). The others are passed over:
    checkpoints go on without them."""
    keeps_other_shards: bool = ours("keepRecordsOfOtherShards", truth(), default=False)
    """Deliver the user records of a KPL aggregate whose keys belong to other shards. They are left out by default, as the
    Java daemon does it (it leaves out the whole aggregate), because after a reshard the KPL writes them again. On a stream whose
    `RecordDistributionStrategy` is AUTO they are delivered in any case ([records without a key](concepts.md#records-without-a-partition-key))."""
    batch_window_ms: int | None = ours("batchWindowMillis", MILLISECONDS, None)
    """How long records are gathered for one batch ([batches of a size](flow.md#batches-of-a-size)). The batch is
    delivered earlier when it has `batchMaxRecords` or `batchMaxBytes`."""
    batch_max_records: int | None = ours("batchMaxRecords", whole_number(1, INT_MAX, "records"), None)
    """Maximum number of records in one batch. Without `batchWindowMillis`, larger ones are only cut."""
    batch_max_bytes: int | None = ours("batchMaxBytes", whole_number(1, LONG_MAX, "bytes"), None)
    """The same for the bytes of their data. A record that is larger comes alone."""

    @property
    def shapes_batches(self) -> bool:
        return (self.batch_window_ms, self.batch_max_records, self.batch_max_bytes) != (None, None, None)

    @property
    def batch_records(self) -> int:
        return self.batch_max_records or INT_MAX

    @property
    def batch_bytes(self) -> int:
        return self.batch_max_bytes or LONG_MAX


@dataclass(frozen=True, slots=True)
class FanOutSettings:
    consumer_arn: str | None = java("fanoutConfig.consumerArn", _CONSUMER_ARN, None, blank_is_absent=True)
    """Existing consumer to use; no consumer is registered."""
    consumer_name: str | None = java(
        "fanoutConfig.consumerName", _CONSUMER_NAME, None, shown="`applicationName`", blank_is_absent=True
    )
    """Name of the consumer; registered if it does not exist."""
    describe_stream_tries: int = java("fanoutConfig.maxDescribeStreamSummaryRetries", _TRIES, 10)
    """Number of tries of DescribeStreamSummary before one attempt to find the consumer fails."""
    describe_consumer_tries: int = java("fanoutConfig.maxDescribeStreamConsumerRetries", _TRIES, 10)
    """The same for DescribeStreamConsumer, also while waiting for a new consumer to become ACTIVE."""
    register_tries: int = java("fanoutConfig.registerStreamConsumerRetries", _TRIES, 10)
    """The same for RegisterStreamConsumer."""
    retry_backoff_ms: int = java("fanoutConfig.retryBackoffMillis", MILLISECONDS_OR_NONE, 1_000)
    """Pause between these tries."""
    fallback_to_polling: bool = ours("fanoutFallbackToPolling", truth(), default=False)
    """Whether shards are polled if fan-out is not available: the stream has its maximum number of consumers,
    or permissions are missing."""


def resolve_mode(
    values: dict[str, object], written: Iterable[PropertyEntry], *, polls_only: bool = False
) -> None:
    """KCL: RetrievalMode."""
    if values.get("retrievalMode") is None:
        polled = polls_only or any(_is_about_polling(entry) for entry in written)
        values["retrievalMode"] = RetrievalMode.POLLING if polled else RetrievalMode.FANOUT


def _is_about_polling(entry: PropertyEntry) -> bool:
    """As in Java, 0 counts as not set unless the property is boxed."""
    name = entry.key.removeprefix(f"{_POLLING}.")
    if name in _OF_POLLING_BOXED:
        return True
    return name in _OF_POLLING and bool(trimmed(entry.value).lstrip("+-0"))


class SchemaRegistry(Enum):
    OFF = "OFF"
    DECODE = "DECODE"


class SchemaFailure(Enum):
    RETRY = "RETRY"
    PASSTHROUGH = "PASSTHROUGH"


@dataclass(frozen=True, slots=True)
class SchemaSettings:
    registry: SchemaRegistry = ours("schemaRegistry", member(SchemaRegistry), SchemaRegistry.OFF)
    """`DECODE`: records with the header of the AWS Glue Schema Registry get the fields `schemaName`,
    `schemaVersionId`, `schemaDataFormat` and `schemaDefinition`; their data comes uncompressed and without
    the header. See [Schemas](schema-registry.md)."""
    on_failure: SchemaFailure = ours("schemaRegistryFailure", member(SchemaFailure), SchemaFailure.RETRY)
    """What happens to a record whose schema is not in the registry, or that cannot be unpacked. `RETRY`: the
    shard waits and the daemon tries again, with warnings. `PASSTHROUGH`: the record is delivered unchanged,
    with its header."""

    @property
    def are_resolved(self) -> bool:
        return self.registry is SchemaRegistry.DECODE
