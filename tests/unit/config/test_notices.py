"""What is said about a properties file: the lines that refuse it, and the notices beside one that is taken."""

from __future__ import annotations

import pytest

from kcl_daemon.config.load import nearest_name
from kcl_daemon.config.settings import INERT
from tests.unit.config.helpers import GOOD, events, read, refusals

BAD = [
    ("failoverTimeMillis", "abc", "not a whole number; allowed: 1 to 9223372036854775807 milliseconds"),
    ("failoverTimeMillis", "", "empty"),
    ("failoverTimeMillis", "0", "out of range"),
    ("failoverTimeMillis", "-12", "out of range"),
    ("failoverTimeMillis", "10_000", "not a whole number"),
    ("failoverTimeMillis", "10,000", "not a whole number"),
    ("failoverTimeMillis", "10000L", "not a whole number"),
    ("failoverTimeMillis", "0x10", "not a whole number"),
    ("failoverTimeMillis", "1000.5", "not a whole number"),
    ("failoverTimeMillis", "9223372036854775808", "out of range"),
    ("failoverTimeMillis", "9" * 5000, "out of range"),
    ("failoverTimeMillis", "\\u0661", "not a whole number"),
    ("maxRecords", "10001", "allowed: 1 to 10000 records"),
    ("maxRecords", "0", "out of range"),
    ("pollingConfig.maxRecords", "many", "not a whole number"),
    ("idleTimeBetweenReadsInMillis", "-1", "out of range"),
    ("timeoutInSeconds", "0", "out of range"),
    ("timeoutInSeconds", "abc", "not a whole number"),
    ("shutdownGraceMillis", "5s", "not a whole number"),
    ("maxLeasesForWorker", "2147483648", "out of range"),
    ("callProcessRecordsEvenForEmptyRecordList", "maybe", "neither true nor false"),
    ("callProcessRecordsEvenForEmptyRecordList", "", "empty"),
    ("initialPositionInStream", "OLDEST", "allowed: LATEST or TRIM_HORIZON"),
    ("initialPositionInStream", "AT_TIMESTAMP", "initialPositionInStreamExtended"),
    ("initialPositionInStream", "earliest", "Kinesis calls it TRIM_HORIZON"),
    ("initialPositionInStream", "Newest", "Kinesis calls it LATEST"),
    (
        "initialPositionInStreamExtended",
        "2025-01-01",
        "this is a time, not a number of seconds: write 1735689600",
    ),
    ("initialPositionInStreamExtended", "2025-01-01T01:00:00+01:00", "seconds: write 1735689600"),
    ("initialPositionInStreamExtended", "1969-12-31", "not a whole number"),
    ("initialPositionInStreamExtended", "1735689600000", "write 1735689600"),
    ("initialPositionInStreamExtended", "-5", "out of range"),
    ("streamArn", "arn:aws:kinesis:eu-west-1:1:stream/clicks", "not the ARN of a stream"),
    ("streamArn", "clicks", "not the ARN of a stream"),
    ("streamName", "a/b", "not a valid name"),
    ("streamName", "arn:aws:kinesis:eu-west-1:111122223333:stream/s", "this is an ARN; use streamArn for it"),
    ("applicationName", "", "empty"),
    ("applicationName", "my app", "not a valid name"),
    ("regionName", "", "empty"),
    ("regionName", "eu west", "not a valid name"),
    ("kinesisEndpoint", "localhost:4567", "not a valid service endpoint; write http://localhost:4567"),
    ("kinesisEndpoint", "kinesis.eu-west-1.amazonaws.com", "; write https://kinesis.eu-west-1.amazonaws.com"),
    ("kinesisEndpoint", "me:hunter2@localhost:4567", "not a valid service endpoint; allowed"),
    ("kinesisEndpoint", "ftp://localhost", "not a valid service endpoint"),
    ("kinesisEndpoint", "http://localhost:99999", "not a valid service endpoint"),
    ("kinesisEndpoint", "http://[", "not a valid service endpoint"),
    ("dynamoDBEndpoint", "http://", "not a valid service endpoint"),
    ("workerId", "", "empty"),
    ("workerId", "a\\u0000b", "not a valid name"),
    ("executableName", "", "empty"),
    ("executableName", "   ", "empty"),
    ("executableName", "a\\u0000b", "cannot be used in a command line"),
    ("executableName", "\\ud83d", "cannot be used in a command line"),
    ("leaderHeartbeatMillis", "10000", "less than a third"),
    ("leaderLeaseMillis", "9000", "set both leaderHeartbeatMillis and leaderLeaseMillis"),
    ("childRestartBackoffMillis", "60001", "must not exceed"),
    ("childRestartBackoffMaxMillis", "499", "set both"),
    ("AwsCredentialsProvider", "", "empty"),
    ("AwsCredentialsProvider", "com.example.OwnProvider", "use DefaultCredentialsProvider"),
    ("AwsCredentialsProvider", "com.example.Own, DefaultCredentialsProvider", "'Own' is unknown"),
    ("AWSCREDENTIALSPROVIDERDynamoDB", "StsAssumeRoleCredentialsProvider|arn|name", "not the ARN of a role"),
    ("AwsCredentialsProvider", "AnonymousCredentialsProvider", "require signed requests"),
    ("kinesisClient.httpClientBuilder.maxConcurrency", "5", "the Java daemon refuses it"),
    ("dynamoDbClient.fipsEnabeld", "true", "dynamoDbClient.fipsEnabled is"),
    ("kinesisCredentialsProvider.profileName", "x", "the Java daemon refuses it"),
    ("childUser", "a b", "not a valid name"),
    ("metricsEnabledDimensions", "Operation; ShardId", "is not a dimension"),
    ("metricsNamespace", "AWS/Kinesis", "not beginning with AWS/"),
    ("metricsOtlpEndpoint", "127.0.0.1:4318", "http://HOST:PORT/PATH"),
    ("metricsOtlpPeriodMillis", "0", "1 to"),
    ("metricsLevel", "LOUD", "allowed: NONE or SUMMARY or DETAILED"),
]


@pytest.mark.parametrize(
    ("key", "value", "reason"), BAD, ids=[f"{key}={value[:20]}" for key, value, _ in BAD]
)
def test_a_bad_value_gives_one_line_with_file_key_value_and_reason(key: str, value: str, reason: str) -> None:
    (line,) = refusals(f"{key} = {value}\n")
    # A value that Java would escape is shown escaped as well.
    assert line.startswith(f"app.properties:4: {key} = ")
    if "\\" not in value:
        assert value.strip()[:100] in line
    assert reason in line
    assert line.isprintable()


def test_all_errors_of_a_file_are_reported_at_once_in_its_order() -> None:
    lines = refusals("timeoutInSeconds = 0\nfoo = 1\nmaxRecords = x\n", base="streamName = s\n")
    assert [line.split(":")[1].strip().split(" ")[0] for line in lines] == [
        "2",
        "4",
        "executableName",
        "applicationName",
    ]


@pytest.mark.parametrize("key", ["executableName", "streamName", "applicationName"])
def test_a_missing_key_is_named_with_the_line_to_add(key: str) -> None:
    kept = "".join(line for line in GOOD.splitlines(keepends=True) if not line.startswith(key))
    (line,) = refusals(base=kept)
    assert line.startswith(f"app.properties: {key} is missing; add a line: {key} = ")


def test_a_missing_key_that_was_misspelt_is_pointed_at() -> None:
    (line,) = refusals(base=GOOD.replace("streamName", "StreamName"))
    assert "(line 2 has StreamName" in line


def test_an_empty_stream_name_is_a_missing_one() -> None:
    (line,) = refusals(base=GOOD.replace("orders", ""))
    assert "streamName is missing" in line


def test_a_broken_escape_is_a_configuration_error() -> None:
    assert refusals("x = \\uZZ\n") == [
        "app.properties:4: \\uZZ is not a character: \\u needs four hexadecimal digits"
    ]


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("FailoverTimeMillis", "failoverTimeMillis"),
        ("failoverTimeMilis", "failoverTimeMillis"),
        ("RetrievalMode", "retrievalMode"),
        ("DynamoDBEndpoint", "dynamoDBEndpoint"),
        ("pollingConfig.maxRecord", "pollingConfig.maxRecords"),
        ("workerId[0]", "workerId"),
        ("AwsCredentialsProviderDynamoDb", "AwsCredentialsProviderDynamoDB"),
    ],
)
def test_an_unknown_key_is_left_alone_and_its_neighbour_named(key: str, nearest: str) -> None:
    loaded = read(f"{key} = 1\n")
    assert loaded.settings == read().settings
    (notice,) = loaded.warnings
    assert (notice.event, notice.level) == ("unknown_property", "warning")
    assert notice.fields("app.properties") == {
        "file": "app.properties",
        "line": 4,
        "key": key,
        "nearest": nearest,
    }


def test_an_unknown_key_like_no_other_has_no_neighbour() -> None:
    assert nearest_name("zzz.yyy") is None
    assert events("zzz.yyy = 1\nzzz.yyy = 1\n") == [("unknown_property", "zzz.yyy", 5)]


@pytest.mark.parametrize("name", sorted(INERT))
def test_a_known_key_without_effect_gives_one_warning_and_is_not_unknown(name: str) -> None:
    assert events(f"{name} = 12345\n") == [("property_has_no_effect", name, 4)]


@pytest.mark.parametrize(
    "line", ["retrievalMode = polling", "metricsLevel = NONE ", "metricsLevel = detailed"]
)
def test_a_value_that_is_acted_on_needs_no_warning(line: str) -> None:
    assert events(f"{line}\n") == []


def test_secrets_and_control_characters_never_reach_a_message() -> None:
    for key, value in (
        ("failoverTimeMillis", "AKIAIOSFODNN7EXAMPLE"),
        ("kinesisEndpoint", "http://me:hunter2@host"),
        ("regionName", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
        ("maxRecords", "\\u001b[31mred\\n"),
    ):
        (line,) = refusals(f"{key} = {value}\n")
        assert line.isprintable()
        for secret in ("IOSFODNN7", "hunter2", "wJalr"):
            assert secret not in line


@pytest.mark.parametrize("client", ["kinesisClient", "dynamoDbClient", "cloudWatchClient"])
@pytest.mark.parametrize(
    "path", ["overrideConfiguration.apiCallTimeout", "overrideConfiguration.retryPolicy.numRetries"]
)
def test_a_property_of_nested_builders_of_the_java_sdk_has_no_effect(client: str, path: str) -> None:
    name = f"{client}.{path}"
    assert events(f"{name} = PT10S\n") == [("property_has_no_effect", name, 4)]


BASE = "executableName = consumer.py\n"


@pytest.mark.parametrize(
    ("value", "more"),
    [
        ('<%= ENV["KINESIS_STREAM"] %>', ""),
        ("{{ stream }}", ""),
        ("$STREAM_NAME", ""),
        ("${STREAM_NAME}", ", or add expandEnvironment = true"),
        ("orders-${STAGE:-dev}", ", or add expandEnvironment = true"),
    ],
)
def test_an_unrendered_template_is_refused_as_a_template(value: str, more: str) -> None:
    """Two names: one is refused by itself, the other for what is named after it."""
    for line in refusals(f"streamName = {value}\napplicationName = {value}\n", base=BASE):
        key, variable = (
            ("streamName", "STREAM") if ": streamName" in line else ("applicationName", "APPLICATION")
        )
        reason = f"this is a template, and here it is plain text: render the file, or set KCL_{variable}_NAME{more}"
        assert line.endswith(f"{key} = {value}: {reason}")


def test_a_template_of_another_kind_is_called_one_beside_variables_that_are_replaced() -> None:
    (line,) = refusals("expandEnvironment = true\nregionName = {{ region }}\n")
    assert line.endswith("render the file, or set KCL_REGION_NAME")
    (line,) = refusals("expandEnvironment = true\nregionName = ${NOWHERE}\n")
    assert "the environment variable NOWHERE is not set" in line


@pytest.mark.parametrize("value", ["${HOSTNAME}", "<%= host %>", "{{ host }}"])
def test_a_template_that_is_taken_as_text_is_a_warning(value: str) -> None:
    (notice,) = read(f"workerId = {value}\n").warnings
    assert (notice.event, notice.key, notice.line) == ("template_not_rendered", "workerId", 4)
    assert notice.level == "warning"


def test_braces_that_others_expand_are_not_reported_as_a_template() -> None:
    assert read(base=GOOD.replace("consumer.py", "sh -c ${PROGRAM}")).warnings == ()
    for line in (
        'recordFilter = {"data":{"a":{"b":[{"prefix":"{{"}]}}}',
        "expandEnvironment = true\nworkerId = ${NAME:-w}",
        "workerId = costs$5",
    ):
        assert read(f"{line}\n").warnings == ()


@pytest.mark.parametrize(
    "text", ['{\n  "streamName": "s"\n}\n', '\n [{"streamName": "s"}]', '\xef\xbb\xbf{"streamName": "s",}']
)
def test_json_instead_of_properties_is_called_json(text: str) -> None:
    assert refusals(base=text) == [
        "app.properties: this is JSON, not properties: write one KEY = VALUE on each line, such as streamName = orders"
    ]


def test_a_good_file_may_begin_with_a_brace() -> None:
    assert read(base="{ = 1\n" + GOOD).settings == read().settings
