"""The properties of the landing log: what they stand in for, and what cannot be combined with them."""

from __future__ import annotations

import pytest

from kcl_daemon.app import lease_settings_of
from kcl_daemon.config.load import RELAY, effective
from tests.unit.config.helpers import read, refusals

BASE = "streamName = orders\napplicationName = billing\nlanding = /var/lib/landing\n"


@pytest.mark.parametrize(
    "place",
    [
        "/var/lib/landing",
        "landing",
        "file:///mnt/nfs/landing",
        "s3://records",
        "s3://records/a/b",
        "hdfs://h/p",
    ],
)
def test_a_landing_stands_in_for_a_program(place: str) -> None:
    loaded = read(base=BASE.replace("/var/lib/landing", place))
    settings = loaded.settings
    assert (settings.landing.uri, settings.bundled, settings.child.command) == (place, "landing", RELAY)
    assert loaded.warnings == ()
    (program,) = (each for each in effective(loaded) if each.key == "executableName")
    assert program.origin == "landing"


@pytest.mark.parametrize("place", ["s3://", "s3://Bucket/a", "s3://records/a?b", "s3:records"])
def test_a_bad_bucket_is_refused(place: str) -> None:
    (said,) = refusals(base=BASE.replace("/var/lib/landing", place))
    assert "not a bucket and a prefix" in said


KEY = "arn:aws:kms:eu-west-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"


@pytest.mark.parametrize("encryption", ["AES256", "aws:kms", KEY])
def test_an_encryption_is_that_of_a_bucket(encryption: str) -> None:
    line = f"landingEncryption = {encryption}\n"
    bucket = BASE.replace("/var/lib/landing", "s3://records/orders")
    assert read(line, base=bucket).settings.landing.encryption == encryption
    (said,) = refusals(line, base=BASE)
    assert "only S3 encrypts" in said


@pytest.mark.parametrize("encryption", ["aes", "alias/orders", KEY.replace("key/", "alias/"), "aws:kms:"])
def test_a_key_is_given_by_its_arn(encryption: str) -> None:
    bucket = BASE.replace("/var/lib/landing", "s3://records/orders")
    (said,) = refusals(f"landingEncryption = {encryption}\n", base=bucket)
    assert "the ARN of a KMS key" in said


def test_defaults_are_those_of_the_lander() -> None:
    landing = read(base=BASE).settings.landing
    assert (landing.window_ms, landing.max_bytes, landing.memory_bytes) == (5_000, 64 * 2**20, 256 * 2**20)
    assert (landing.layout, landing.format, landing.processes, landing.endpoint) == (
        "log",
        "parquet",
        1,
        None,
    )


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("executableName = consumer.py", "no program of yours runs"),
        ("childPreload = true", "no program to load"),
        ("childUser = nobody", "only to the daemon's own user"),
        ("childProtocol = KCL_1_8", "the bundled lander"),
        ("shardConcurrency = 4", "one log, in order"),
        ("schemaRegistry = DECODE", "kept as they are"),
        ("deadLetterDestination = file:dead.jsonl", "the bundled lander"),
        ("batchWindowMillis = 5000", "landingWindowMillis"),
        ("batchMaxRecords = 5", "landingMaxBytes"),
    ],
)
def test_a_property_that_makes_no_sense_with_a_lander_is_refused_with_the_reason(line: str, why: str) -> None:
    (said,) = refusals(f"{line}\n", base=BASE)
    assert said.startswith(f"app.properties:4: {line}")
    assert "with landing" in said
    assert why in said


def test_policies_for_records_that_no_child_can_process_are_refused() -> None:
    said = refusals("poisonRecordPolicy = SKIP\nmaxRecordAgeMillis = 600000\n", base=BASE)
    assert [line.split(" ")[1] for line in said] == ["poisonRecordPolicy", "maxRecordAgeMillis"]


@pytest.mark.parametrize(
    "lines",
    [
        'recordFilter = {"partitionKey": ["a"]}',
        "retrievalMode = FANOUT",
        "serviceLevelMillis = 60000",
        "runUntil = tip\ninitialPositionInStream = TRIM_HORIZON",
        "childPreload = false\nshardConcurrency = 1\npoisonRecordPolicy = RETRY\nschemaRegistry = OFF",
        "landingMaxBytes = 1048576\nlandingMemoryBytes = 1048576",
    ],
)
def test_a_property_that_works_with_landing_is_accepted(lines: str) -> None:
    assert read(f"{lines}\n", base=BASE).settings.landing.uri is not None


def test_a_segment_must_fit_into_memory() -> None:
    (said,) = refusals("landingMemoryBytes = 1048576\n", base=BASE)
    assert "one segment (landingMaxBytes, 67108864 bytes) must fit into landingMemoryBytes (1048576)" in said


def test_with_a_pipeline_the_daemon_only_lands() -> None:
    loaded = read(
        "sparkPipeline = orders:totals\nrunUntil = tip\ninitialPositionInStream = TRIM_HORIZON\n", base=BASE
    )
    (notice,) = loaded.warnings
    assert (notice.event, notice.level, notice.key) == ("pipeline_reads_the_landing", "info", "sparkPipeline")
    assert "kcl-daemon spark-submit" in str(notice.facts["advice"])
    assert loaded.settings.bundled == "landing"


def test_without_a_landing_its_other_properties_do_nothing() -> None:
    loaded = read("landingWindowMillis = 1000\n")
    assert [(each.event, each.key) for each in loaded.warnings] == [
        ("property_has_no_effect", "landingWindowMillis")
    ]


def test_relays_do_not_stand_by() -> None:
    loaded = read("childStandbyMillis = 9000\n", base=BASE)
    assert [each.event for each in loaded.warnings] == ["property_has_no_effect"]
    assert lease_settings_of(loaded.settings).standby_ms == 0


def test_many_streams_land_unless_two_would_share_a_folder() -> None:
    many = BASE.replace("streamName = orders", "streamNames = orders, clicks")
    assert read(base=many).settings.reads_many
    arns = ", ".join(
        f"arn:aws:kinesis:eu-west-1:{account}:stream/orders" for account in ("111122223333", "444455556666")
    )
    (said,) = refusals(base=BASE.replace("streamName = orders", f"streamArns = {arns}"))
    assert "two streams are named orders, and would share a folder" in said
