"""The properties that say how shards are read, and those of enhanced fan-out.

Owns the rule of Java's DEFAULT mode: which properties are about polling. Pure data.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kcl_daemon.config.fan_out_settings import RetrievalMode
from kcl_daemon.config.key import MILLISECONDS_OR_NONE, Key
from kcl_daemon.config.kinds import INT_MAX, choice, name, trimmed, truth, whole_number
from kcl_daemon.config.properties import Entry

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


def resolve_mode(values: dict[str, object], written: Iterable[Entry]) -> None:
    """Put the mode that `DEFAULT`, or no line, means into `values` (KCL: RetrievalMode).

    Args:
        values: by key name.
        written: all entries of the file.
    """
    if values.get(RETRIEVAL_MODE.name) is None:
        polled = any(_is_about_polling(entry) for entry in written)
        values[RETRIEVAL_MODE.name] = RetrievalMode.POLLING if polled else RetrievalMode.FANOUT


def _is_about_polling(entry: Entry) -> bool:
    """Whether it sets a property of polling; 0 counts as not set, as in Java, but for what is boxed there."""
    name = entry.key.removeprefix(_POLLING_PREFIX)
    if name in _OF_POLLING_BOXED:
        return True
    return name in _OF_POLLING and bool(trimmed(entry.value).lstrip("+-0"))
