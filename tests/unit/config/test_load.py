"""What a properties file means, what is said about it and how it is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given as given_any
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from kcl_daemon.config.inert import INERT
from kcl_daemon.config.keys import BY_NAME
from kcl_daemon.config.kinds import LONG_MAX
from kcl_daemon.config.load import FILE_BYTES_MAX, Loaded, interpret, load
from kcl_daemon.config.reading import nearest_name
from kcl_daemon.config.settings import ChildSettings, LeaseSettings, RetrievalSettings, Settings
from kcl_daemon.errors import ConfigurationError
from kcl_daemon.shards.shard import InitialPosition, StartAt
from kcl_daemon.system import SystemRandomness
from tests.unit.config.helpers import GOOD, WORKER, events, read, refusals

ARN = "arn:aws:kinesis:eu-west-1:111122223333:stream/clicks"


class FixedRandomness:
    """Always the same."""

    def uniform(self, low: float, high: float) -> float:
        return (low + high) / 2

    def token(self) -> str:
        return "01234567-89ab-4cde-8f01-23456789abcd"


def load_text(directory: Path, text: str) -> Loaded:
    path = directory / "app.properties"
    path.write_text(text, encoding="iso-8859-1")
    return load(path, randomness=FixedRandomness(), hostname="host")


def test_a_minimal_file_gives_the_defaults() -> None:
    assert read().settings == Settings(
        application_name="billing",
        stream_name="orders",
        child=ChildSettings(command=("consumer.py",)),
        worker_id=WORKER,
    )
    assert read().warnings == ()


def test_every_key_fills_its_field() -> None:
    settings = read(
        "workerIdentifier = w-1\ntableName = billing-leases\nregionName = eu-west-1\n"
        "kinesisEndpoint = http://127.0.0.1:4567\ndynamoDBEndpoint = https://ddb.example:8443/\n"
        "initialPositionInStream = trim_horizon\nfailoverTimeMillis = 12000\nmaxLeasesForWorker = 7\n"
        "parentShardPollIntervalMillis = 8000\nworkerMetricsReporterFreqInMillis = 20000\n"
        "leaderLeaseMillis = 9000\nleaderHeartbeatMillis = 2999\nmaxRecords = 500\n"
        "idleTimeBetweenReadsInMillis = 250\nmaxPendingProcessRecordsInput = 2\nprefetchMaxBytes = 1000\n"
        "timeoutInSeconds = 90\nshutdownGraceMillis = 0\ncallProcessRecordsEvenForEmptyRecordList = Yes\n"
        "childRestartBackoffMillis = 10\nchildRestartBackoffMaxMillis = 20\nchildExitGraceMillis = 0\n"
    ).settings
    assert settings.worker_id == "w-1"
    assert settings.lease_table == "billing-leases"
    assert settings.endpoints.region_name == "eu-west-1"
    assert settings.endpoints.kinesis == "http://127.0.0.1:4567"
    assert settings.endpoints.dynamodb == "https://ddb.example:8443/"
    assert settings.initial_position == InitialPosition(StartAt.TRIM_HORIZON)
    assert settings.leases == LeaseSettings(12_000, 7, 8_000, 9_000, 2_999, 20_000)
    assert settings.retrieval == RetrievalSettings(500, 250, 1_000, 2)
    assert settings.child == ChildSettings(
        ("consumer.py",),
        timeout_s=90,
        shutdown_grace_ms=0,
        call_for_empty=True,
        backoff_first_ms=10,
        backoff_most_ms=20,
        exit_grace_ms=0,
    )


@pytest.mark.parametrize("dotted", ["pollingConfig.maxRecords", "maxRecords"])
def test_dotted_and_bare_names_mean_the_same(dotted: str) -> None:
    loaded = read(f"{dotted} = 77\n")
    assert loaded.settings.retrieval.max_records == 77
    assert loaded.warnings == ()


def test_executable_name_is_split_at_spaces_and_at_nothing_else() -> None:
    loaded = read(base=GOOD.replace("consumer.py", 'node  --flag="a b"\\tc  $HOME *'))
    assert loaded.settings.child.command == ("node", '--flag="a', 'b"\tc', "$HOME", "*")


def test_a_stream_arn_gives_name_and_region_and_is_kept() -> None:
    loaded = read(f"streamArn = {ARN}\n", base=GOOD.replace("streamName = orders\n", "\n"))
    assert loaded.settings.stream_name == "clicks"
    assert loaded.settings.stream_arn == ARN
    assert loaded.settings.endpoints.region_name == "eu-west-1"
    assert loaded.warnings == ()


def test_a_stream_arn_wins_over_the_name_and_a_region_over_that_of_the_arn() -> None:
    more = f"streamArn = {ARN}\nregionName = us-east-1\n"
    settings = read(more).settings
    assert (settings.stream_name, settings.endpoints.region_name) == ("clicks", "us-east-1")
    assert events(more) == [
        ("property_contradicts_stream_arn", "streamName", 2),
        ("property_contradicts_stream_arn", "regionName", 5),
    ]


@pytest.mark.parametrize("key", ["streamArn", "tableName"])
def test_an_empty_value_is_no_value_where_java_says_so(key: str) -> None:
    assert read(f"{key} =\n").settings == read().settings


def test_a_timestamp_wins_over_a_word_in_either_order() -> None:
    lines = ("initialPositionInStream = LATEST\n", "initialPositionInStreamExtended = 1735689600\n")
    for text in ("".join(lines), "".join(reversed(lines))):
        assert read(text).settings.initial_position == InitialPosition(StartAt.TIMESTAMP, 1_735_689_600.0)


def test_a_pause_that_is_too_short_is_raised_with_a_warning() -> None:
    loaded = read("idleTimeBetweenReadsInMillis = 0\n")
    assert loaded.settings.retrieval.idle_time_between_reads_ms == 200
    (notice,) = loaded.warnings
    assert (notice.event, notice.level) == ("property_raised", "warning")
    assert notice.fields("f") == {
        "file": "f",
        "line": 4,
        "key": "idleTimeBetweenReadsInMillis",
        "given": 0,
        "used": 200,
        "why": "Kinesis allows five reads a second of a shard",
    }


@pytest.mark.parametrize(("given", "used"), [(199, 200), (200, 200), (201, 201)])
def test_a_pause_is_raised_only_when_it_is_too_short(given: int, used: int) -> None:
    loaded = read(f"idleTimeBetweenReadsInMillis = {given}\n")
    assert loaded.settings.retrieval.idle_time_between_reads_ms == used
    assert len(loaded.warnings) == (given != used)


def test_both_waits_before_a_restart_may_be_the_same() -> None:
    child = read("childRestartBackoffMillis = 70000\nchildRestartBackoffMaxMillis = 70000\n").settings.child
    assert (child.backoff_first_ms, child.backoff_most_ms) == (70_000, 70_000)


def test_the_last_of_two_lines_counts_also_under_two_names() -> None:
    loaded = read("workerId = a\nworkerIdentifier = b\nmaxRecords = junk\nmaxRecords = 5\n")
    assert loaded.settings.worker_id == "b"
    assert loaded.settings.retrieval.max_records == 5
    assert [(notice.event, notice.line) for notice in loaded.warnings] == [
        ("property_given_twice", 5),
        ("property_given_twice", 7),
    ]


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
    ("initialPositionInStreamExtended", "2025-01-01", "not a whole number"),
    ("initialPositionInStreamExtended", "1735689600000", "write 1735689600"),
    ("initialPositionInStreamExtended", "-5", "out of range"),
    ("streamArn", "arn:aws:kinesis:eu-west-1:1:stream/clicks", "not the ARN of a stream"),
    ("streamArn", "clicks", "not the ARN of a stream"),
    ("streamName", "a/b", "not such a name"),
    ("applicationName", "", "empty"),
    ("applicationName", "my app", "not such a name"),
    ("regionName", "", "empty"),
    ("regionName", "eu west", "not such a name"),
    ("kinesisEndpoint", "localhost:4567", "not an address"),
    ("kinesisEndpoint", "ftp://localhost", "not an address"),
    ("kinesisEndpoint", "http://localhost:99999", "not an address"),
    ("kinesisEndpoint", "http://[", "not an address"),
    ("dynamoDBEndpoint", "http://", "not an address"),
    ("workerId", "", "empty"),
    ("workerId", "a\\u0000b", "not such a name"),
    ("executableName", "", "empty"),
    ("executableName", "   ", "empty"),
    ("executableName", "a\\u0000b", "no command line can hold"),
    ("executableName", "\\ud83d", "no command line can hold"),
    ("leaderHeartbeatMillis", "10000", "less than a third"),
    ("leaderLeaseMillis", "15000", "set both leaderHeartbeatMillis and leaderLeaseMillis"),
    ("childRestartBackoffMillis", "60001", "must not be longer than"),
    ("childRestartBackoffMaxMillis", "499", "set both"),
    ("AwsCredentialsProvider", "", "empty"),
    ("AwsCredentialsProvider", "com.example.OwnProvider", "write DefaultCredentialsProvider"),
    ("AwsCredentialsProvider", "ProfileCredentialsProvider|staging", "AWS_PROFILE"),
    ("AWSCREDENTIALSPROVIDERDynamoDB", "StsAssumeRoleCredentialsProvider|arn|name", "assuming a role"),
    ("AwsCredentialsProvider", "AnonymousCredentialsProvider", "unsigned"),
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


def test_all_errors_of_a_file_are_told_at_once_in_its_order() -> None:
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
        "app.properties:4: \\uZZ is no character: \\u needs four hexadecimal digits"
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
    event = "property_has_no_effect" if INERT[name].never else "property_not_supported_yet"
    assert events(f"{name} = 12345\n") == [(event, name, 4)]


@pytest.mark.parametrize("line", ["retrievalMode = polling", "metricsLevel = NONE "])
def test_a_value_that_asks_for_what_is_done_needs_no_warning(line: str) -> None:
    assert events(f"{line}\n") == []


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("DefaultCredentialsProvider", ["credentials_from_sdk_chain"]),
        (
            "EnvironmentVariableCredentialsProvider, InstanceProfileCredentialsProvider",
            ["credentials_from_sdk_chain"],
        ),
        (
            "software.amazon.awssdk.auth.credentials.ProfileCredentialsProvider",
            ["credentials_from_sdk_chain"],
        ),
        (
            "DefaultAWSCredentialsProviderChain",
            ["credentials_from_sdk_chain", "credentials_provider_doubtful"],
        ),
        (
            "com.example.Own, DefaultCredentialsProvider",
            ["credentials_from_sdk_chain", "credentials_provider_doubtful"],
        ),
    ],
)
@pytest.mark.parametrize("key", ["AwsCredentialsProvider", "AWSCredentialsProvider"])
def test_credentials_that_the_sdk_chain_covers_are_accepted(
    key: str, value: str, expected: list[str]
) -> None:
    notices = read(f"{key} = {value}\n").warnings
    assert [notice.event for notice in notices] == expected
    assert notices[0].level == "info"
    assert all(notice.level == "warning" for notice in notices[1:])


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


def test_the_default_worker_id_is_host_and_random_part(tmp_path: Path) -> None:
    assert load_text(tmp_path, GOOD).settings.worker_id == "host-0123456789ab"


def test_two_daemons_on_a_host_differ(tmp_path: Path) -> None:
    path = tmp_path / "app.properties"
    path.write_text(GOOD, encoding="ascii")
    one, other = (load(path, randomness=SystemRandomness(), hostname="host").settings for _ in range(2))
    assert one.worker_id != other.worker_id


@pytest.mark.parametrize("kind", ["missing", "directory", "unreadable", "nul"])
def test_a_file_that_cannot_be_read_is_refused_with_path_and_reason(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "app.properties"
    reason = {"missing": "No such file", "directory": "directory", "unreadable": "denied", "nul": "null"}[
        kind
    ]
    if kind == "directory":
        path.mkdir()
    elif kind == "unreadable":
        if os.geteuid() == 0:
            pytest.skip("root reads everything")
        path.touch(0o000)
    elif kind == "nul":
        path = tmp_path / "a\0b"
    with pytest.raises(ConfigurationError) as caught:
        load(path, randomness=FixedRandomness(), hostname="host")
    assert "the properties file cannot be read" in str(caught.value)
    assert reason in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_file_that_is_no_properties_file_by_its_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="larger than"):
        load_text(tmp_path, "#" * (FILE_BYTES_MAX + 1))


_NAMES = st.sampled_from([*BY_NAME, *INERT, "AwsCredentialsProvider", "awscredentialsprovider", "zzz"])
_VALUES = st.one_of(
    st.text(st.characters(max_codepoint=255)),
    st.integers().map(str),
    st.sampled_from(
        ["", " ", "true", "LATEST", ARN, "http://x", "http://[::1]:1/", "\\u0000", "\\ud800", "a,b|c"]
    ),
)


@hypothesis_settings(deadline=None)
@given_any(st.lists(st.tuples(st.one_of(_NAMES, st.text(st.characters(max_codepoint=255))), _VALUES)))
def test_no_file_can_do_worse_than_being_refused(pairs: list[tuple[str, str]]) -> None:
    text = GOOD + "".join(f"{key} = {value}\n" for key, value in pairs)
    check_any(text.encode("iso-8859-1"))


@hypothesis_settings(deadline=None)
@given_any(st.binary())
def test_no_bytes_can_do_worse_than_being_refused(data: bytes) -> None:
    check_any(data)


def check_any(data: bytes) -> None:
    try:
        loaded = interpret(data, file="f", default_worker_id=WORKER)
    except ConfigurationError as error:
        lines = str(error).splitlines()
        assert lines
        assert all(line.isprintable() and line.startswith("f:") for line in lines)
    else:
        assert loaded.settings.child.command
        assert all(isinstance(notice.fields("f")["line"], int) for notice in loaded.warnings)


@hypothesis_settings(deadline=None)
@given_any(
    st.integers(1, LONG_MAX), st.sampled_from(["", " ", "\t", "+", "000"]), st.sampled_from(["", "  ", "\t"])
)
def test_any_number_in_range_is_taken_as_it_is(number: int, before: str, after: str) -> None:
    loaded = read(f"failoverTimeMillis = {before}{number}{after}\n")
    assert loaded.settings.leases.failover_time_ms == number
