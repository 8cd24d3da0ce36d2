"""`kcl-daemon check` without AWS: what is printed, and the exit code."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kcl_daemon.cli import main
from kcl_daemon.cli.check import count_findings, missing_script, not_tried, verdict_of
from kcl_daemon.config.load import interpret

GOOD = "executableName = true\nstreamName = orders\napplicationName = billing\nregionName = eu-west-1\n"

QUOTED = re.compile(" *[0-9]* \\| ")


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
    result = check(tmp_path, GOOD + "failoverTimeMillis = 9000\n", "--all", KCL_MAX_RECORDS="500")
    assert result.exit_code == 0
    shown = rows(result)
    assert shown["failoverTimeMillis"] == ("9000", f"{tmp_path}/app.properties:5")
    assert shown["maxRecords"] == ("500", "KCL_MAX_RECORDS")
    assert shown["leaseAssignmentStrategy"] == ("WORKER_UTILIZATION_AWARE", "default")
    assert shown["retrievalMode"] == ("POLLING", "default")
    assert shown["executableName"] == ("true", f"{tmp_path}/app.properties:1")


@pytest.mark.parametrize("words", [(), ("--changed",)])
def test_only_what_was_changed_is_shown(tmp_path: Path, words: tuple[str, ...]) -> None:
    shown = rows(check(tmp_path, GOOD, *words))
    assert list(shown) == ["executableName", "applicationName", "streamName", "regionName", "retrievalMode"]


def test_stream_name_and_region_are_shown_as_of_the_arn_that_has_them(tmp_path: Path) -> None:
    arn = "arn:aws:kinesis:eu-west-2:111122223333:stream/clicks"
    shown = rows(check(tmp_path, f"executableName = true\napplicationName = billing\nstreamArn = {arn}\n"))
    assert shown["streamName"] == ("clicks", "streamArn")
    assert shown["regionName"] == ("eu-west-2", "streamArn")


def test_notices_are_sentences(tmp_path: Path) -> None:
    result = check(
        tmp_path, GOOD + "failoverTimeMilis = 1\ncleanupLeasesUponShardCompletion = false\nzz = 1\n"
    )
    reported = result.stdout.split("\n\n")[1].splitlines()
    file, unknown = f"{tmp_path}/app.properties", "is not a known property and has no effect"
    assert [line for line in reported if not QUOTED.match(line)] == [
        f"{file}:6: info: cleanupLeasesUponShardCompletion = false is honoured; the Java daemon uses true",
        (
            f"{file}: info: retrievalMode is FANOUT by default, for which Amazon charges by shard, hour and GB; POLLING costs "
            "nothing more"
        ),
        f"{file}:5: warning: failoverTimeMilis {unknown}; did you mean failoverTimeMillis?",
        f"{file}:7: warning: zz {unknown}",
    ]


@pytest.mark.parametrize(
    ("more", "words", "line", "code"),
    [
        ("", (), "OK: would start; AWS was not checked (use --with-aws)", 0),
        ("zz = 1\n", (), "OK: would start; 1 warning; AWS was not checked (use --with-aws)", 0),
        (
            "zz = 1\nzy = 1\n",
            ("--all",),
            "OK: would start; 2 warnings; AWS was not checked (use --with-aws)",
            0,
        ),
        ("zz = 1\n", ("--strict",), "OK: would start; 1 warning; AWS was not checked (use --with-aws)", 2),
        ("", ("--strict",), "OK: would start; AWS was not checked (use --with-aws)", 0),
    ],
)
def test_the_last_line_is_the_verdict(
    tmp_path: Path, more: str, words: tuple[str, ...], line: str, code: int
) -> None:
    result = check(tmp_path, GOOD + more, *words)
    assert (result.stdout.splitlines()[-1], result.exit_code) == (line, code)


@pytest.mark.parametrize(
    ("errors", "warnings", "untried", "line"),
    [
        (0, 0, 2, "OK: would start; 2 things not tried"),
        (1, 1, 0, "1 error, 1 warning"),
        (2, 0, 1, "2 errors; 1 thing not tried"),
        (0, 0, 0, "OK: would start"),
    ],
)
def test_errors_warnings_and_calls_not_tried_of_aws_are_counted_in_the_verdict(
    errors: int, warnings: int, untried: int, line: str
) -> None:
    assert verdict_of(errors=errors, warnings=warnings, not_tried=untried, asked_aws=True) == line


def test_findings_are_counted() -> None:
    findings = [(True, "stream s: ACTIVE"), (False, "x: NOT TRIED, as y"), not_tried("a", "b")]
    assert count_findings(findings) == (1, 1)


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        ("python3 nothere.py", "nothere.py"),
        ("python3 -u /x/there.py nothere.py", None),
        ("node --max-old-space-size=64 nothere.js", "nothere.js"),
        ("/x/there.py nothere.csv", None),
        ("python3 -m app nothere.py", None),
        ("java -jar nothere.jar", "nothere.jar"),
        ("true", None),
    ],
)
def test_a_script_that_is_not_there_is_named(command: str, missing: str | None) -> None:
    assert missing_script(command.split(), lambda name: name == "/x/there.py") == missing


def test_a_script_in_another_folder_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = GOOD.replace("true", "sh nothere.sh")
    result = check(tmp_path, text)
    assert result.exit_code == 0
    assert f"nothere.sh is not in {tmp_path}" in result.stdout
    assert "1 warning" in result.stdout.splitlines()[-1]
    (tmp_path / "nothere.sh").touch()
    assert "nothere.sh is" not in check(tmp_path, text).stdout


def test_with_errors_in_the_file_only_the_errors_are_printed(tmp_path: Path) -> None:
    result = check(tmp_path, GOOD + "maxRecords = 0\ntimeoutInSeconds = x\n")
    assert (result.exit_code, result.stdout) == (2, "")
    *lines, verdict = (line for line in result.stderr.splitlines() if not QUOTED.match(line))
    assert [line.split(": ")[1].split(" = ")[0] for line in lines] == ["maxRecords", "timeoutInSeconds"]
    assert verdict == "2 errors"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD.replace("true", "./no-such-program"), "no-such-program"),
        (GOOD + "childUser = nobody-of-that-name\n", "there is no user"),
    ],
)
def test_a_program_or_a_package_that_children_lack_is_an_error(tmp_path: Path, text: str, said: str) -> None:
    result = check(tmp_path, text)
    assert result.exit_code == 2
    line, verdict = (line for line in result.stderr.splitlines() if not QUOTED.match(line))
    assert verdict == "1 error"
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
    assert (document["verdict"]["errors"], document["verdict"]["warnings"]) == (0, 1)
    assert document["settings"]["failoverTimeMillis"]["origin"] == "default"
    bad = check(tmp_path, "", "--json")
    assert bad.exit_code == 2
    assert len(json.loads(bad.stdout)["problems"]) == 3


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    result = check(tmp_path, GOOD + "executableName = true --password=hunter2\n")
    assert result.exit_code == 0
    assert "hunter2" not in result.stdout


def test_a_file_is_needed() -> None:
    result = CliRunner().invoke(main, ["check"])
    assert result.exit_code == 2
    assert "no properties file given" in result.stderr


def test_a_second_file_is_passed_over_with_a_word(tmp_path: Path) -> None:
    result = check(tmp_path, GOOD, "other.properties")
    assert result.exit_code == 0
    assert result.stderr == "other.properties is ignored; --properties is used\n"
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
