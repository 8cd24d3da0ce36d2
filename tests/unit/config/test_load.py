"""What a properties file means, and which files cannot be read at all. What is said about one: `test_notices`."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import given as given_any
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from kcl_daemon.config.balance import LeaseSettings
from kcl_daemon.config.children import ChildSettings
from kcl_daemon.config.kinds import LONG_MAX
from kcl_daemon.config.load import FILE_BYTES_MAX, Loaded, as_properties, effective, interpret, load
from kcl_daemon.config.retrieval import RetrievalMode, RetrievalSettings
from kcl_daemon.config.settings import BY_NAME, INERT, Settings
from kcl_daemon.errors import ConfigurationError
from kcl_daemon.shards.lineage import InitialPosition, StartAt
from kcl_daemon.system import SystemRandomness
from tests.unit.config.helpers import GOOD, WORKER, events, read

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
        retrieval=RetrievalSettings(mode=RetrievalMode.FANOUT),
    )
    assert read().warnings == ()


def test_the_basic_properties_fill_the_fields_of_the_settings() -> None:
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
    assert settings.leases == LeaseSettings(
        failover_time_ms=12_000,
        max_leases_for_worker=7,
        parent_shard_poll_interval_ms=8_000,
        leader_lease_ms=9_000,
        leader_heartbeat_ms=2_999,
        worker_metrics_report_ms=20_000,
    )
    assert settings.retrieval == RetrievalSettings(
        max_records=500, idle_time_between_reads_ms=250, prefetch_bytes=1_000, prefetch_batches=2
    )
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


def test_a_stream_arn_wins_over_the_name() -> None:
    more = f"streamArn = {ARN}\n"
    settings = read(more).settings
    assert (settings.stream_name, settings.stream_arn) == ("clicks", ARN)
    assert events(more) == [("property_contradicts_stream_arn", "streamName", 2)]


PLACEHOLDER = "arn:aws:kinesis:us-east-5:000000000000:stream/orders"


@pytest.mark.parametrize("region", ["regionName", "kinesisClient.region"])
def test_of_an_arn_of_another_region_the_name_alone_is_used(region: str) -> None:
    more = f"streamArn = {ARN.replace('clicks', 'orders')}\n{region} = us-east-1\n"
    settings = read(more).settings
    assert (settings.stream_name, settings.stream_arn) == ("orders", None)
    (notice,) = read(more).warnings
    assert (notice.event, notice.key, notice.line, notice.level) == (
        "stream_arn_counts_by_name",
        "streamArn",
        4,
        "warning",
    )
    assert notice.facts["why"] == (
        f"it names eu-west-1 and {region} is us-east-1: only its name is used, as in Java"
    )


def test_of_an_arn_with_a_placeholder_for_the_account_the_name_alone_is_used() -> None:
    more = f"streamArn = {PLACEHOLDER}\nregionName = us-east-1\n"
    settings = read(more).settings
    assert (settings.stream_name, settings.stream_arn) == ("orders", None)
    assert settings.endpoints.region_name == "us-east-1"
    (notice,) = read(more).warnings
    assert notice.facts["why"] == (
        "it names us-east-5 and regionName is us-east-1, and its account 000000000000 is a placeholder: "
        "only its name is used, as in Java"
    )


@pytest.mark.parametrize(
    ("environment", "region"),
    [({}, "us-east-5"), ({"AWS_REGION": "eu-west-1"}, None), ({"AWS_DEFAULT_REGION": "eu-west-1"}, None)],
)
def test_the_region_of_a_placeholder_is_used_where_nobody_else_names_one(
    environment: dict[str, str], region: str | None
) -> None:
    """An emulator's streams have that account, and its ARN may be all there is; None: as the SDK finds it."""
    data = f"{GOOD}streamArn = {PLACEHOLDER}\n".encode()
    loaded = interpret(data, file="f", default_worker_id=WORKER, environment=environment)
    assert loaded.settings.endpoints.region_name == region


def test_a_resolved_file_names_the_stream_where_the_arn_counts_by_name_alone() -> None:
    loaded = read(f"streamArn = {PLACEHOLDER}\n", base=GOOD.replace("streamName = orders\n", ""))
    resolved = as_properties(loaded)
    assert "streamArn" not in resolved
    assert "streamName = orders\n" in resolved
    shown = {each.key: each for each in effective(loaded)}
    assert (shown["streamName"].value, shown["streamName"].origin) == ("orders", "streamArn")
    assert shown["streamArn"].origin == "only its name is used"


@pytest.mark.parametrize("key", ["streamArn", "tableName"])
def test_an_empty_value_is_no_value_where_java_says_so(key: str) -> None:
    assert read(f"{key} =\n").settings == read().settings


def test_a_timestamp_wins_over_a_word_in_either_order() -> None:
    lines = ("initialPositionInStream = LATEST\n", "initialPositionInStreamExtended = 1735689600\n")
    for text in ("".join(lines), "".join(reversed(lines))):
        assert read(text).settings.initial_position == InitialPosition(StartAt.TIMESTAMP, 1_735_689_600.0)


def test_a_pause_that_is_too_short_is_raised_with_a_warning() -> None:
    loaded = read("idleTimeBetweenReadsInMillis = 1\n")
    assert loaded.settings.retrieval.idle_time_between_reads_ms == 200
    (notice,) = loaded.warnings
    assert (notice.event, notice.level) == ("property_raised", "warning")
    assert notice.fields("f") == {
        "file": "f",
        "line": 4,
        "key": "idleTimeBetweenReadsInMillis",
        "given": 1,
        "used": 200,
        "why": "Kinesis allows five reads per second and shard",
    }


@pytest.mark.parametrize(("given", "used"), [(199, 200), (200, 200), (201, 201)])
def test_a_pause_is_raised_only_when_it_is_too_short(given: int, used: int) -> None:
    loaded = read(f"idleTimeBetweenReadsInMillis = {given}\n")
    assert loaded.settings.retrieval.idle_time_between_reads_ms == used
    assert len(loaded.warnings) == (given != used)


def test_children_are_stuck_only_where_it_is_said_after_how_long() -> None:
    assert read("").settings.child.stuck_timeout_ms is None
    assert read("childStuckTimeoutMillis = 30000\n").settings.child.stuck_timeout_ms == 30_000


def test_the_first_and_the_longest_restart_backoff_may_be_equal() -> None:
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


def test_the_default_worker_id_is_host_and_random_part(tmp_path: Path) -> None:
    assert load_text(tmp_path, GOOD).settings.worker_id == "host-0123456789ab"


def test_two_daemons_on_a_host_differ(tmp_path: Path) -> None:
    path = tmp_path / "app.properties"
    path.write_text(GOOD, encoding="ascii")
    one, other = (load(path, randomness=SystemRandomness(), hostname="host").settings for _ in range(2))
    assert one.worker_id != other.worker_id


def deny(path: Path, mode: str) -> NoReturn:
    """In the place of `Path.open`."""
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


@pytest.mark.parametrize("kind", ["missing", "directory", "denied", "nul"])
def test_a_file_that_cannot_be_read_is_refused_with_path_and_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    path = tmp_path / "app.properties"
    reason = {"missing": "No such file", "directory": "directory", "denied": "denied", "nul": "null"}[kind]
    if kind == "directory":
        path.mkdir()
    elif kind == "denied":
        monkeypatch.setattr(Path, "open", deny)  # not by the mode of a file: root reads everything
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


def test_a_byte_order_mark_is_passed_over() -> None:
    loaded = interpret(b"\xef\xbb\xbf" + GOOD.encode(), file="f", default_worker_id=WORKER)
    assert loaded.settings == read().settings
    assert loaded.warnings == ()


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_a_file_in_utf_16_is_named_as_such(encoding: str) -> None:
    data = GOOD.encode(encoding) if encoding == "utf-16" else b"\xfe\xff" + GOOD.encode(encoding)
    with pytest.raises(ConfigurationError) as caught:
        interpret(data, file="f", default_worker_id=WORKER)
    assert str(caught.value) == "f:1: the file is in UTF-16; save it as UTF-8 or ISO-8859-1"
