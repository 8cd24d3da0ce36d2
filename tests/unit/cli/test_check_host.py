"""What this host lacks is an error of `check`, and the file is shown all the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.cli.test_check import GOOD, QUOTED, check, rows

NO_REGION = GOOD.replace("regionName = eu-west-1\n", "")


@pytest.fixture(autouse=True)
def nothing_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No AWS_... variable but one that forbids the metadata of an instance; gives a configuration file of the SDK."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_DEFAULT_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    config = tmp_path / "aws-config"
    config.write_text("[profile team]\nregion = eu-central-1\n", "ascii")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return config


def errors(text: str, directory: Path, **environment: str) -> list[str]:
    result = check(directory, text, **environment)
    *said, verdict = [line for line in result.stderr.splitlines() if not QUOTED.match(line)] or [""]
    assert result.exit_code == (2 if said else 0)
    assert ("would start" in result.stdout) is not bool(said)
    assert not said or verdict.startswith(f"{len(said)} error")
    return said


def test_a_file_without_a_region_would_not_start(tmp_path: Path) -> None:
    (line,) = errors(NO_REGION, tmp_path)
    assert line.startswith(f"{tmp_path}/app.properties: no AWS region: set regionName")


@pytest.mark.parametrize(
    ("more", "environment"),
    [
        ("regionName = eu-west-1\n", {}),
        ("streamArn = arn:aws:kinesis:eu-west-1:111122223333:stream/orders\n", {}),
        ("kinesisClient.region = eu-west-1\ndynamoDbClient.region = eu-west-1\n", {}),
        ("", {"AWS_REGION": "eu-west-1"}),
        ("", {"AWS_DEFAULT_REGION": "eu-west-1"}),
        ("", {"AWS_PROFILE": "team"}),
        ("", {"KCL_REGION_NAME": "eu-west-1"}),
    ],
)
def test_a_region_is_taken_from_where_the_daemon_takes_it(
    tmp_path: Path, more: str, environment: dict[str, str]
) -> None:
    assert errors(NO_REGION + more, tmp_path, **environment) == []


def test_the_region_of_one_service_is_not_that_of_the_other(tmp_path: Path) -> None:
    (line,) = errors(NO_REGION + "kinesisClient.region = eu-west-1\n", tmp_path)
    assert "no AWS region" in line


@pytest.mark.parametrize(
    ("more", "environment"),
    [
        ("AwsCredentialsProvider = ProfileCredentialsProvider|nosuchprofile\n", {}),
        ("AwsCredentialsProviderDynamoDB = ProfileCredentialsProvider|nosuchprofile\n", {}),
        ("", {"AWS_PROFILE": "nosuchprofile"}),
    ],
)
def test_a_profile_that_is_not_there_would_not_start(
    tmp_path: Path, more: str, environment: dict[str, str]
) -> None:
    (line,) = errors(GOOD + more, tmp_path, **environment)
    assert "The config profile (nosuchprofile) could not be found" in line
    assert errors(GOOD + "AwsCredentialsProvider = ProfileCredentialsProvider|team\n", tmp_path) == []


def test_the_rest_of_the_file_is_shown_when_its_program_is_elsewhere(tmp_path: Path) -> None:
    text = NO_REGION.replace("true", "kcl.sh") + "shardSyncIntervalMillis = 2000\n"
    program, region = errors(text, tmp_path)
    assert program.startswith(f"{tmp_path}/app.properties:1: cannot start 'kcl.sh' of executableName")
    assert "no AWS region" in region
    result = check(tmp_path, text)
    assert rows(result)["streamName"] == ("orders", f"{tmp_path}/app.properties:2")
    assert "warning: shardSyncIntervalMillis has no effect" in result.stdout
    assert result.stderr.splitlines()[-1] == "2 errors, 1 warning"


def test_one_document_has_the_settings_beside_the_errors(tmp_path: Path) -> None:
    result = check(tmp_path, NO_REGION.replace("true", "kcl.sh"), "--json")
    document = json.loads(result.stdout)
    assert result.exit_code == 2
    assert [each.split(": ")[1][:13] for each in document["problems"]] == ["cannot start ", "no AWS region"]
    assert document["settings"]["streamName"]["value"] == "orders"
    assert document["verdict"]["errors"] == 2


def test_a_document_has_each_warning_that_it_counts(tmp_path: Path) -> None:
    document = json.loads(
        check(tmp_path, GOOD.replace("true", "sh nothere.sh") + "zz = 1\n", "--json").stdout
    )
    warnings = [each for each in document["messages"] if "warning: " in each]
    assert document["verdict"]["warnings"] == len(warnings) == 2


def test_aws_is_not_asked_without_a_region(tmp_path: Path) -> None:
    result = check(tmp_path, NO_REGION, "--with-aws")
    assert result.exit_code == 2
    assert "no AWS region" in result.stderr
    assert rows(result)["streamName"][0] == "orders"


def test_a_resolved_file_needs_nothing_of_this_host(tmp_path: Path) -> None:
    result = check(tmp_path, NO_REGION.replace("true", "kcl.sh"), "--resolved")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "executableName = kcl.sh\n" in result.stdout


FAN_OUT = "retrievalMode is FANOUT by default, for which Amazon charges by shard, hour and GB; POLLING costs nothing more"


@pytest.mark.parametrize(
    ("more", "is_said"),
    [
        ("", True),
        ("retrievalMode = DEFAULT\n", True),
        ("retrievalMode = FANOUT\n", False),
        ("maxRecords = 9\n", False),
    ],
)
def test_the_price_of_fan_out_is_said_where_nobody_asked_for_it(
    tmp_path: Path, more: str, is_said: bool
) -> None:
    result = check(tmp_path, GOOD + more, "--strict")
    assert (f"{tmp_path}/app.properties: info: {FAN_OUT}" in result.stdout) is is_said
    assert result.exit_code == 0
