"""The properties of failing children: their fields, what a place of dead letters may be, what must go together."""

from __future__ import annotations

import pytest

from kcl_daemon.config.children import (
    ChildFailurePolicy,
    FailureSettings,
    PoisonRecordPolicy,
)
from kcl_daemon.config.dead_letters import DESTINATION, Destination
from kcl_daemon.config.kinds import InvalidValue
from kcl_daemon.destinations.file import FileLetters
from kcl_daemon.destinations.kinesis import StreamLetters
from kcl_daemon.destinations.s3 import BucketLetters
from kcl_daemon.destinations.sns import TopicLetters
from kcl_daemon.destinations.sqs import QueueLetters
from tests.unit.config.helpers import read, refusals

DEAD = "poisonRecordPolicy = deadletter\ndeadLetterDestination = file:dead.jsonl\n"


def test_each_property_fills_its_field() -> None:
    loaded = read(
        "childFailurePolicy = restart\nchildMaxFailures = 7\nchildDegradedMillis = 5000\n"
        f"poisonRecordMaxFailures = 4\n{DEAD}"
    )
    assert loaded.settings.failures == FailureSettings(
        policy=ChildFailurePolicy.RESTART,
        failures_most=7,
        degraded_ms=5_000,
        poison=PoisonRecordPolicy.DEADLETTER,
        poison_tries=4,
        dead_letters=FileLetters("dead.jsonl"),
    )
    assert loaded.warnings == ()


QUEUE = "https://sqs.eu-west-1.amazonaws.com/111122223333/dead"
VPC = "https://vpce-1a-2b.sqs.us-gov-west-1.vpce.amazonaws.com/111122223333/dead.fifo"
LEGACY = "https://ap-south-1.queue.amazonaws.com/111122223333/dead"
LOCAL = "http://127.0.0.1:4566/000000000000/dead"
ARN = "arn:aws:kinesis:eu-west-1:111122223333:stream/dead"
TOPIC = "arn:aws:sns:eu-west-1:111122223333:dead.fifo"
TO = "poisonRecordPolicy = deadletter\ndeadLetterDestination = "


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("file:dead.jsonl", FileLetters("dead.jsonl")),
        ("file:/var/lib/dead.jsonl", FileLetters("/var/lib/dead.jsonl")),
        ("file:///var/lib/dead.jsonl", FileLetters("/var/lib/dead.jsonl")),
        (f" sqs:{QUEUE} ", QueueLetters(QUEUE)),
        (f"sqs:{VPC}", QueueLetters(VPC)),
        (f"sqs:{LEGACY}", QueueLetters(LEGACY)),
        (f"sqs:{LOCAL}", QueueLetters(LOCAL)),
        ("kinesis:dead", StreamLetters("dead")),
        (f"kinesis:{ARN}", StreamLetters(ARN)),
        (f"sns:{TOPIC}", TopicLetters(TOPIC)),
        ("s3://letters", BucketLetters("//letters")),
        ("s3://my.letters/a=1/", BucketLetters("//my.letters/a=1/")),
    ],
)
def test_a_place_is_a_file_or_of_a_service(text: str, place: Destination) -> None:
    assert DESTINATION.read(text) == place
    assert DESTINATION.read(str(place)) == place


@pytest.mark.parametrize(
    ("text", "folder"),
    [
        ("s3://letters", ("letters", "", False)),
        ("s3://letters/", ("letters", "", False)),
        ("s3://letters?folders=day", ("letters", "", True)),
        ("s3://letters/a/b", ("letters", "a/b/", False)),
        ("s3://letters/a/b/?folders=day", ("letters", "a/b/", True)),
    ],
)
def test_a_bucket_may_have_a_prefix_and_folders(text: str, folder: tuple[str, str, bool]) -> None:
    place = DESTINATION.read(text)
    assert isinstance(place, BucketLetters)
    assert place.folder == folder


@pytest.mark.parametrize(
    ("url", "region"),
    [(QUEUE, "eu-west-1"), (VPC, "us-gov-west-1"), (LEGACY, "ap-south-1"), (LOCAL, None)],
)
def test_the_address_of_a_queue_tells_its_region(url: str, region: str | None) -> None:
    assert QueueLetters.read(url).region_name == region


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s3:letters",
        "s3://Letters",
        "s3://le",
        "s3:///a",
        "s3://letters/a//b",
        "s3://letters/a#b",
        "s3://letters/a b",
        "s3://letters?folders=hour",
        f"s3://letters/{'a' * 257}",
        "sns:dead",
        "sns:arn:aws:sns:eu-west-1:111122223333:dead:1b2c",
        "dead.jsonl",
        "file:",
        "file://host/dead",
        "file:/var/lib/",
        "ftp:x",
        "sqs:dead",
        "sqs:https://sqs.eu-west-1.amazonaws.com/dead",
        "sqs:arn:aws:sqs:eu-west-1:111122223333:dead",
        "kinesis:",
        "kinesis:a b",
        "kinesis:arn:aws:kinesis:eu-west-1:1:stream/dead",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue):
        DESTINATION.read(text)


def test_a_destination_alone_is_enough_for_rejects_and_for_records_that_are_too_old() -> None:
    failures = read("deadLetterDestination = file:x\nmaxRecordAgeMillis = 5\n").settings.failures
    assert failures.poison is PoisonRecordPolicy.RETRY
    assert (str(failures.dead_letters), failures.max_age_ms) == ("file:x", 5)


@pytest.mark.parametrize("policy", ["poisonRecordPolicy = skip\n", DEAD])
def test_ages_and_attempts_go_with_each_policy_that_sets_records_aside(policy: str) -> None:
    failures = read(f"{policy}maxRecordAgeMillis = 5\nmaxRecordAttempts = 6\n").settings.failures
    assert (failures.max_age_ms, failures.attempts) == (5, 6)


@pytest.mark.parametrize(
    ("lines", "key", "reason"),
    [
        ("poisonRecordPolicy = deadletter\n", "poisonRecordPolicy", "needs deadLetterDestination"),
        ("sparkPipeline = m:f\ndeadLetterDestination = file:x\n", "deadLetterDestination", "a sparkPipeline"),
        ("maxRecordAgeMillis = 5\n", "maxRecordAgeMillis", "needs deadLetterDestination"),
        ("maxRecordAttempts = 5\n", "maxRecordAttempts", "needs poisonRecordPolicy"),
        ("deadLetterDestination = file:x\nmaxRecordAttempts = 5\n", "maxRecordAttempts", "or SKIP"),
        ("deadLetterOverflow = s3://letters\n", "deadLetterOverflow", "needs deadLetterDestination"),
        ("deadLetterOverflow = file:x\n", "deadLetterOverflow", "not an S3 bucket"),
        (
            "childFailurePolicy = exit\npoisonRecordPolicy = skip\n",
            "poisonRecordPolicy",
            "keep one of the two",
        ),
        ("sparkPipeline = m:f\npoisonRecordPolicy = skip\n", "poisonRecordPolicy", "do not process records"),
        ("childMaxFailures = 4\npoisonRecordPolicy = skip\n", "childMaxFailures", "must be above"),
        ("poisonRecordMaxFailures = 9\npoisonRecordPolicy = skip\n", "poisonRecordMaxFailures", "or 0"),
    ],
)
def test_two_properties_that_cannot_go_together_are_one_error_with_key_and_value(
    lines: str, key: str, reason: str
) -> None:
    (line,) = refusals(lines)
    assert f": {key} = " in line
    assert reason in line


@pytest.mark.parametrize(
    ("place", "record"),
    [(f"sqs:{QUEUE}", "768 KiB"), (f"sns:{TOPIC}", "192 KiB"), ("kinesis:dead", "768 KiB")],
)
def test_a_place_with_a_limit_is_reported_unless_there_is_an_overflow(place: str, record: str) -> None:
    (notice,) = read(f"{TO}{place}\n").warnings
    assert (notice.event, notice.key) == ("dead_letters_may_not_fit", "deadLetterDestination")
    assert notice.facts["largest_record"] == f"about {record}"
    assert "set deadLetterOverflow = s3://" in str(notice.facts["advice"])
    loaded = read(f"{TO}{place}\ndeadLetterOverflow = s3://letters/large\n")
    assert loaded.warnings == ()
    overflow = BucketLetters("//letters/large")
    assert loaded.settings.failures.dead_letter_overflow == overflow


@pytest.mark.parametrize("place", ["file:dead.jsonl", "s3://letters"])
def test_an_overflow_of_a_place_without_limit_has_no_effect(place: str) -> None:
    assert read(f"{TO}{place}\n").warnings == ()
    (notice,) = read(f"{TO}{place}\ndeadLetterOverflow = s3://letters/large\n").warnings
    assert (notice.event, notice.key) == ("property_has_no_effect", "deadLetterOverflow")


def test_a_lease_that_is_never_released_leaves_all_the_time_for_finding_a_record() -> None:
    settings = read(
        "childMaxFailures = 0\npoisonRecordMaxFailures = 50\npoisonRecordPolicy = skip\n"
    ).settings
    assert settings.failures.poison is PoisonRecordPolicy.SKIP
