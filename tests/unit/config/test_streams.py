"""Many streams in a properties file: what may be written, and what it does not go with."""

from __future__ import annotations

import pytest

from kcl_daemon.config.streams import FormerStreams, ListedStream
from kcl_daemon.leases.lease import StreamIdentity
from kcl_daemon.shards.lineage import InitialPosition, StartAt
from tests.unit.config.helpers import read, refusals

BASE = "executableName = consumer.py\napplicationName = billing\n"
CLICKS = "arn:aws:kinesis:eu-west-1:111122223333:stream/clicks"
ORDERS = "arn:aws:kinesis:eu-west-1:444455556666:stream/orders"


def test_streams_by_arn_and_by_name_each_with_a_position_of_its_own() -> None:
    lines = f"streamArns = {CLICKS}, {ORDERS}@latest\nstreamNames = logs@1700000000,metrics@TRIM_HORIZON\n"
    settings = read(lines, base=BASE).settings
    assert settings.reads_many
    assert (settings.stream_name, settings.stream_arn) == ("", None)
    assert settings.endpoints.region_name == "eu-west-1"
    assert settings.streams.listed == (
        ListedStream("clicks", CLICKS),
        ListedStream("orders", ORDERS, InitialPosition(StartAt.LATEST)),
        ListedStream("logs", None, InitialPosition(StartAt.TIMESTAMP, 1_700_000_000.0)),
        ListedStream("metrics", None, InitialPosition(StartAt.TRIM_HORIZON)),
    )


def test_one_stream_is_as_ever() -> None:
    settings = read().settings
    assert not settings.reads_many
    assert (settings.stream_name, settings.streams.listed) == ("orders", ())


def test_properties_of_former_streams_are_read() -> None:
    lines = (
        "streamNames = a\nformerStreamsLeasesDeletionStrategy = PROVIDED_STREAMS_DEFERRED_DELETION\n"
        "waitPeriodToDeleteFormerStreams = PT2H\nstreamIdentifiersForLeaseCleanup = 1:a:5, 1:b:6\n"
        "streamListRefreshMillis = 5000\n"
    )
    streams = read(lines, base=BASE).settings.streams
    assert (streams.former, streams.former_wait_s, streams.refresh_ms) == (
        FormerStreams.DELETE_GIVEN,
        7200.0,
        5000,
    )
    assert streams.former_given == (StreamIdentity("1", "a", 5), StreamIdentity("1", "b", 6))


@pytest.mark.parametrize(
    ("lines", "reported"),
    [
        ("streamNames = a,a\n", "streamNames = a,a: a is listed twice"),
        ("streamNames = a@NOW\n", "streamNames = a@NOW: 'a@NOW': not an allowed value"),
        ("streamNames = a@oldest\n", "'a@oldest': Kinesis calls it TRIM_HORIZON"),
        (
            "streamNames = a@2025-01-01\n",
            "'a@2025-01-01': this is a time, not a number of seconds: write 1735689600",
        ),
        (f"streamNames = {CLICKS}\n", "this is an ARN; use streamArns for it"),
        ("streamNames = a@\n", "streamNames = a@: 'a@': empty"),
        ("streamNames = a b\n", "streamNames = a b: 'a b': not a valid name"),
        ("streamArns = a\n", "streamArns = a: 'a': not the ARN of a stream"),
        ("streamNames = a\nstreamName = b\n", "streamName = b: names one stream, streamNames names many"),
        (f"streamArns = {ORDERS}\nstreamArn = {CLICKS}\n", "names one stream, streamArns names many"),
        (f"streamArns = {CLICKS}\nstreamNames = clicks\n", "clicks is in streamNames too"),
        (
            f"streamArns = {CLICKS},{ORDERS.replace('eu-west-1', 'us-east-1')}\n",
            "several regions (eu-west-1, us-east-1)",
        ),
        ("streamNames = a\nsparkPipeline = x:y\n", "sparkPipeline = x:y: a Spark pipeline reads one stream"),
        (
            f"streamNames = a\nfanoutConfig.consumerArn = {CLICKS}/consumer/app:1700000000\n",
            "a consumer belongs to one stream",
        ),
        ("streamNames = a\nstreamIdentifiersForLeaseCleanup = 1:b:6\n", "needs formerStreamsLeases"),
        (
            "streamNames = a\nformerStreamsLeasesDeletionStrategy = PROVIDED_STREAMS_DEFERRED_DELETION\n",
            "needs streamIdentifiersForLeaseCleanup",
        ),
        ("streamNames = a\nstreamIdentifiersForLeaseCleanup = b\n", "not an identity of a stream"),
    ],
)
def test_contradicting_properties_of_streams_are_refused_with_file_key_and_value(
    lines: str, reported: str
) -> None:
    (refusal, *_) = refusals(lines, base=BASE)
    assert refusal.startswith("app.properties:")
    assert reported in refusal


def test_an_arn_that_counts_by_name_only_is_refused_beside_many_streams() -> None:
    arn = CLICKS.replace("111122223333", "000000000000")
    (refusal,) = refusals(f"streamNames = a\nstreamArn = {arn}\n", base=BASE)
    assert f"streamArn = {arn}: names one stream, streamNames names many" in refusal


def test_no_stream_at_all_is_missing() -> None:
    (refusal,) = refusals(base=BASE)
    assert "streamName is missing" in refusal
    assert "streamNames" in refusal


def test_a_filter_alone_or_with_names_reads_many_streams() -> None:
    assert read("streamFilter = log-*\n", base=BASE).settings.streams.name_filter == "log-*"
    settings = read("streamFilter = log-?\nstreamNames = a\n", base=BASE).settings
    assert settings.reads_many
    assert settings.streams.texts == ("a", "log-?")
    assert "names many" in refusals("streamFilter = *\n")[0]
    assert "a name with *" in refusals("streamFilter = a/b\n", base=BASE)[0]
