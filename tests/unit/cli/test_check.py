"""`kcl-daemon check` without AWS: what is printed, and the exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kcl_daemon.cli import main
from kcl_daemon.config.load import interpret

GOOD = "executableName = true\nstreamName = orders\napplicationName = billing\nregionName = eu-west-1\n"


def check(directory: Path, text: str, *words: str, **environment: str) -> Result:
    path = directory / "app.properties"
    path.write_text(text, "iso-8859-1")
    return CliRunner().invoke(main, ["check", "--properties", str(path), *words], env=environment)


def rows(result: Result) -> dict[str, tuple[str, str]]:
    """Value and origin of each key that was printed."""
    table = result.stdout.split("\n\n")[0].splitlines()
    found: dict[str, tuple[str, str]] = {}
    for line in table:
        key, value, origin = (part for part in line.split("  ") if part)
        found[key] = (value.strip(), origin.strip())
    return found


def test_every_setting_is_shown_with_where_it_is_from(tmp_path: Path) -> None:
    result = check(tmp_path, GOOD + "failoverTimeMillis = 9000\n", KCL_MAX_RECORDS="500")
    assert result.exit_code == 0
    shown = rows(result)
    assert shown["failoverTimeMillis"] == ("9000", f"{tmp_path}/app.properties:5")
    assert shown["maxRecords"] == ("500", "KCL_MAX_RECORDS")
    assert shown["leaseAssignmentStrategy"] == ("WORKER_UTILIZATION_AWARE", "default")
    assert shown["retrievalMode"] == ("POLLING", "DEFAULT")
    assert shown["executableName"] == ("true", f"{tmp_path}/app.properties:1")


def test_only_what_was_changed_can_be_shown(tmp_path: Path) -> None:
    shown = rows(check(tmp_path, GOOD, "--changed"))
    assert list(shown) == ["executableName", "applicationName", "streamName", "regionName", "retrievalMode"]


def test_what_an_arn_tells_is_shown_as_its(tmp_path: Path) -> None:
    arn = "arn:aws:kinesis:eu-west-2:111122223333:stream/clicks"
    shown = rows(check(tmp_path, f"executableName = true\napplicationName = billing\nstreamArn = {arn}\n"))
    assert shown["streamName"] == ("clicks", "streamArn")
    assert shown["regionName"] == ("eu-west-2", "streamArn")


def test_notices_are_one_line_each(tmp_path: Path) -> None:
    result = check(tmp_path, GOOD + "FailoverTimeMillis = 1\ncleanupLeasesUponShardCompletion = false\n")
    told = result.stdout.split("\n\n")[1].splitlines()
    assert [line.split(": ")[1] for line in told] == ["unknown_property", "property_honoured_unlike_java"]
    assert "nearest=failoverTimeMillis" in told[0]


def test_what_is_wrong_is_told_and_nothing_else(tmp_path: Path) -> None:
    result = check(tmp_path, GOOD + "maxRecords = 0\ntimeoutInSeconds = x\n")
    assert (result.exit_code, result.stdout) == (2, "")
    assert [line.split(": ")[1].split(" = ")[0] for line in result.stderr.splitlines()] == [
        "maxRecords",
        "timeoutInSeconds",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD.replace("true", "./no-such-program"), "no-such-program"),
        (GOOD + "childUser = nobody-of-that-name\n", "there is no user"),
    ],
)
def test_what_children_need_is_looked_for(tmp_path: Path, text: str, said: str) -> None:
    result = check(tmp_path, text)
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert said in line
    assert "app.properties:" in line


def test_one_document_for_scripts(tmp_path: Path) -> None:
    document = json.loads(check(tmp_path, GOOD + "zzz = 1\n", "--json").stdout)
    assert document["problems"] == []
    assert document["settings"]["regionName"] == {
        "value": "eu-west-1",
        "origin": f"{tmp_path}/app.properties:4",
    }
    assert [notice["event"] for notice in document["notices"]] == ["unknown_property"]
    assert "aws" not in document
    bad = check(tmp_path, "", "--json")
    assert bad.exit_code == 2
    assert len(json.loads(bad.stdout)["problems"]) == 3


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    result = check(tmp_path, GOOD + "executableName = true --password=hunter2\n")
    assert result.exit_code == 0
    assert "hunter2" not in result.stdout


def test_the_token_of_spark_connect_is_not_shown(tmp_path: Path) -> None:
    text = GOOD.replace("executableName = true", "sparkPipeline = a:b") + (
        "sparkRemote = sc://h:15002/;use_ssl=true;token=SECRETSECRET\nsparkSpoolDir = /m/a\nsparkStateDir = /m/b\n"
    )
    result = check(tmp_path, text)
    assert "sc://h:15002/;use_ssl=true;token=***" in result.output
    assert "SECRETSECRET" not in result.output


def test_a_file_is_needed() -> None:
    result = CliRunner().invoke(main, ["check"])
    assert result.exit_code == 2
    assert "no properties file given" in result.stderr


def test_a_second_file_is_passed_over_with_a_word(tmp_path: Path) -> None:
    result = check(tmp_path, GOOD, "other.properties")
    assert result.exit_code == 0
    assert result.stderr == "other.properties is not read, --properties wins\n"
    assert check(tmp_path, GOOD).stderr == ""


@pytest.mark.parametrize("key", ["staleWorkerMetricsEntryCleanupDuration", "waitPeriodToDeleteFormerStreams"])
def test_a_duration_is_shown_as_it_can_be_written(tmp_path: Path, key: str) -> None:
    many = GOOD.replace("streamName", "streamNames")
    shown = rows(check(tmp_path, f"{many}{key} = p1dt24h\n"))
    assert shown[key] == ("P2D", f"{tmp_path}/app.properties:5")


@pytest.mark.parametrize("word", ["", "initialPositionInStream = LATEST\n"])
def test_a_start_at_a_time_is_shown_as_what_it_overrules(tmp_path: Path, word: str) -> None:
    shown = rows(check(tmp_path, GOOD + "initialPositionInStreamExtended = 1735689600\n" + word))
    assert shown["initialPositionInStream"] == ("1735689600", "initialPositionInStreamExtended")
    assert shown["initialPositionInStreamExtended"] == ("1735689600", f"{tmp_path}/app.properties:5")
    shown = rows(check(tmp_path, GOOD + "initialPositionInStream = trim_horizon\n"))
    assert shown["initialPositionInStream"] == ("TRIM_HORIZON", f"{tmp_path}/app.properties:5")


@pytest.mark.parametrize(
    ("more", "mode"),
    [
        ("retryGetRecordsInSeconds = 3\n", "POLLING"),
        ("maxGetRecordsThreadPool = 0\nretrievalMode = default\n", "POLLING"),
        ("maxRecords = 5\n", "POLLING"),
        ("", "FANOUT"),
        ("retrievalMode = default\n", "FANOUT"),
        ("retrievalMode = fanout\nmaxRecords = 5\n", "FANOUT"),
    ],
)
def test_a_resolved_file_reads_as_the_daemon_does(tmp_path: Path, more: str, mode: str) -> None:
    resolved = check(tmp_path, GOOD + more, "--resolved").stdout
    assert f"retrievalMode = {mode}\n" in resolved
    before, after = (
        interpret(text.encode(), file="f", default_worker_id="w").settings for text in (GOOD + more, resolved)
    )
    assert after == before
    assert after.retrieval.mode.value == mode
