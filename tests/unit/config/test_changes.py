"""DynamoDB streams in a properties file: what may be written, and what it does not go with."""

from __future__ import annotations

import pytest

from kcl_daemon.config.retrieval import RetrievalMode
from kcl_daemon.config.streams import ListedStream
from kcl_daemon.ports import StreamRef
from kcl_daemon.shards.lineage import InitialPosition, StartAt
from tests.unit.config.helpers import events, read, refusals

BASE = "executableName = consumer.py\napplicationName = billing\n"
LABEL = "2026-11-20T20:51:10.252"
ARN = f"arn:aws:dynamodb:eu-west-1:111122223333:table/orders/stream/{LABEL}"
NAME = "eu-west-1$111122223333$orders$2026-11-20T20_51_10.252"
CLICKS = "arn:aws:kinesis:eu-west-1:111122223333:stream/clicks"


def test_a_stream_by_arn_has_its_name_in_lease_keys_and_is_polled() -> None:
    settings = read(f"streamArn = {ARN}\n", base=BASE).settings
    assert settings.single_stream == StreamRef(NAME, ARN)
    assert settings.single_stream.source.has_tables
    assert settings.endpoints.region_name == "eu-west-1"
    assert settings.retrieval.mode is RetrievalMode.POLLING
    assert not settings.reads_many


def test_a_file_of_the_java_daemon_has_the_arn_as_the_name() -> None:
    settings = read(f"streamName = {ARN}\n", base=BASE).settings
    assert settings.single_stream == StreamRef(NAME, ARN)
    assert settings.retrieval.mode is RetrievalMode.POLLING


def test_a_filter_of_changes() -> None:
    lines = 'tableName.source = orders\nrecordFilter = {"eventName": ["INSERT"]}\n'
    assert read(lines, base=BASE).settings.delivery.record_filter is not None


@pytest.mark.parametrize(("partition", "region"), [("aws-cn", "cn-north-1"), ("aws-us-gov", "us-gov-west-1")])
def test_other_partitions(partition: str, region: str) -> None:
    arn = ARN.replace("arn:aws:", f"arn:{partition}:").replace("eu-west-1", region)
    settings = read(f"streamArn = {arn}\n", base=BASE).settings
    assert (settings.stream_arn, settings.endpoints.region_name) == (arn, region)


def test_the_region_and_account_of_dynamodb_local_are_no_region_and_no_placeholder() -> None:
    arn = ARN.replace("eu-west-1", "ddblocal").replace("111122223333", "000000000000")
    settings = read(f"streamArn = {arn}\nregionName = us-east-1\n", base=BASE).settings
    assert (settings.stream_arn, settings.endpoints.region_name) == (arn, "us-east-1")
    assert read(f"streamArn = {arn}\n", base=BASE).settings.endpoints.region_name is None


def test_a_table_alone() -> None:
    settings = read("tableName.source = orders\nretrievalMode = DEFAULT\n", base=BASE).settings
    assert settings.single_stream == StreamRef("orders", table="orders")
    assert settings.retrieval.mode is RetrievalMode.POLLING


def test_a_table_and_streams_of_both_services_together() -> None:
    lines = f"streamArns = {CLICKS}, {ARN}@TRIM_HORIZON\ntableName.source = users\nshardConcurrency = 1, orders=2, users=3\n"
    settings = read(lines, base=BASE).settings
    assert settings.streams.listed == (
        ListedStream("clicks", CLICKS),
        ListedStream(NAME, ARN, InitialPosition(StartAt.TRIM_HORIZON)),
        ListedStream("users", table="users"),
    )
    assert (settings.stream_name, settings.endpoints.region_name) == ("", "eu-west-1")
    assert settings.streams.texts == (CLICKS, ARN, "users")


@pytest.mark.parametrize(
    ("lines", "reported"),
    [
        (f"streamArn = {ARN.replace('/stream/', '/')}\n", "not the ARN of a stream"),
        ("tableName.source = a\n", "not a valid name"),
        ("tableName.source = orders\nstreamName = orders\n", "names a stream, tableName.source a table"),
        (f"tableName.source = orders\nstreamArn = {ARN}\n", "names a stream, tableName.source a table"),
        (f"streamArn = {ARN}\nregionName = us-east-1\n", "it names eu-west-1 and regionName is us-east-1"),
        (
            'streamName = clicks\nrecordFilter = {"eventName": ["INSERT"]}\n',
            "only records of a DynamoDB stream have these fields",
        ),
        (
            'tableName.source = orders\nchildRecordFormat = plain\nrecordFilter = {"dynamodb": {"SizeBytes": [1]}}\n',
            "a plain record has no such fields",
        ),
        ("tableName.source = orders\nretrievalMode = FANOUT\n", "DynamoDB streams have no fan-out"),
        (f"streamArns = {CLICKS},{ARN}\nretrievalMode = FANOUT\n", "DynamoDB streams have no fan-out"),
        (f"streamArn = {ARN}\nschemaRegistry = DECODE\n", "have no schema of a registry"),
        ("streamName = clicks\nsnapshot = true\n", "only a DynamoDB table has one"),
        (
            "tableName.source = orders\nsnapshot = true\ninitialPositionInStream = TRIM_HORIZON\nrunUntil = tip\n",
            "items of a snapshot have no time",
        ),
        (f"streamArns = {CLICKS},{ARN.replace('eu-west-1', 'us-east-1')}\n", "several regions"),
    ],
)
def test_properties_of_tables_that_contradict_each_other_are_refused(lines: str, reported: str) -> None:
    (refusal, *_) = refusals(lines, base=BASE)
    assert reported in refusal


def test_a_property_of_tables_without_effect_is_reported() -> None:
    assert events("childRecordFormat = plain\nsnapshotSegments = 4\n") == [
        ("property_has_no_effect", "childRecordFormat", 4),
        ("property_has_no_effect", "snapshotSegments", 5),
    ]


def test_with_a_landing_and_with_a_registry_beside_kinesis() -> None:
    landing = "applicationName = billing\nlanding = s3://bucket/orders\ntableName.source = orders\n"
    assert read(base=landing).settings.single_stream.table == "orders"
    assert read(f"streamArns = {CLICKS},{ARN}\nschemaRegistry = DECODE\n", base=BASE).settings.reads_many
