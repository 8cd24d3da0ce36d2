"""Times that are probably in another unit than the property has, and first positions that cannot be meant."""

from __future__ import annotations

import pytest

from kcl_daemon.cli.check import sentence
from kcl_daemon.cli.run import with_doubtful_starts
from kcl_daemon.config.load import default_of
from kcl_daemon.config.settings import KEYS
from tests.unit.config.helpers import GOOD, read

DOUBTFUL = "time_unit_doubtful"


def doubted(more: str) -> list[str]:
    """As `check` prints them."""
    return [sentence(each, "f") for each in read(more).warnings if each.event == DOUBTFUL]


def test_seconds_for_milliseconds_are_a_warning_with_the_value_that_is_meant() -> None:
    assert doubted("failoverTimeMillis = 10\n") == [
        "f:4: warning: failoverTimeMillis = 10 means 10 ms; if seconds are meant, write 10000"
    ]
    assert read("failoverTimeMillis = 10\n").settings.leases.failover_time_ms == 10


def test_milliseconds_for_seconds_are_a_warning_too() -> None:
    assert doubted("timeoutInSeconds = 60000\n") == [
        "f:4: warning: timeoutInSeconds = 60000 means 17 h; if milliseconds are meant, write 60"
    ]


@pytest.mark.parametrize(
    ("line", "doubts"),
    [
        ("failoverTimeMillis = 999", True),
        ("failoverTimeMillis = 1000", False),
        ("shutdownGraceMillis = 20", True),
        ("shutdownGraceMillis = 0", False),
        ("shutdownGraceMillis = 500", False),
        ("gracefulLeaseHandoffTimeoutMillis = 30", True),
        ("gracefulLeaseHandoffConfigBean.gracefulLeaseHandoffTimeoutMillis = 30", True),
        ("parentShardPollIntervalMillis = 10", True),
        ("parentShardPollIntervalMillis = 200", False),
        ("maxRecordAgeMillis = 300\npoisonRecordPolicy = SKIP", True),
        ("maxRecordAgeMillis = 1000\npoisonRecordPolicy = SKIP", False),
        ("childStuckTimeoutMillis = 300", True),
        ("leaseAssignmentIntervalMillis = 20", True),
        ("serviceLevelMillis = 60", True),
        ("batchWindowMillis = 5", True),
        ("batchWindowMillis = 100", False),
        ("childRestartBackoffMillis = 10", False),
        ("idleTimeBetweenReadsInMillis = 1", False),
        ("idleTimeBetweenReadsInMillis = auto", False),
        ("logWarningForTaskAfterMillis = 30", False),
        ("timeoutInSeconds = 14400", False),
        ("landingWindowMillis = 5", True),
        ("sparkMaxSkewMillis = 5", False),
    ],
)
def test_only_an_implausible_duration_gives_a_warning(line: str, doubts: bool) -> None:
    assert bool(doubted(f"{line}\n")) is doubts


def test_no_default_duration_gives_a_warning() -> None:
    """Each in a file of its own, as some exclude others."""
    for key in KEYS:
        if key.name.endswith("Millis") and default_of(key).isdecimal():
            assert doubted(f"{key.name} = {default_of(key)}\n") == [], key.name


NOW_S = 1_790_000_000.0
FUTURE = "in the future: nothing is read until then"
OLD = "before there was Kinesis: all records are read; epoch seconds are meant"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("initialPositionInStreamExtended = 4000000000", f"starts at 2096-10-02T07:06:40+00:00, {FUTURE}"),
        ("initialPositionInStreamExtended = 20250101", f"starts at 1970-08-23T09:01:41+00:00, {OLD}"),
        ("streamNames = a@4000000000,b@1700000000", f"starts at 2096-10-02T07:06:40+00:00, {FUTURE}"),
        ("initialPositionInStreamExtended = 1789999999", None),
        ("initialPositionInStreamExtended = 0", None),
        ("initialPositionInStream = TRIM_HORIZON", None),
    ],
)
def test_a_start_that_cannot_be_meant_is_a_warning(line: str, said: str | None) -> None:
    base = GOOD if "streamNames" not in line else GOOD.replace("streamName = orders", "#")
    found = with_doubtful_starts(read(f"{line}\n", base=base), NOW_S).warnings
    key = line.partition(" ")[0]
    assert [sentence(each, "f") for each in found] == ([f"f:4: warning: {key} {said}"] if said else [])
