"""From `kcl-daemon run STREAM MODULE:FUNCTION` to properties, and which files a reload looks at."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import click
import pytest

from kcl_daemon.cli.run_function import (
    Checked,
    Line,
    application_of,
    as_file,
    letters_of,
    lines_of,
    loaded_from,
    naming_options,
    python_word,
)
from kcl_daemon.cli.run_options import FunctionOptions
from kcl_daemon.cli.run_reload import changed, folders_of, stamps_of
from kcl_daemon.config.load import Loaded
from kcl_daemon.errors import ConfigurationError

VALUE = Checked(takes="value")
NONE = FunctionOptions()


def properties(
    options: FunctionOptions = NONE,
    checked: Checked = VALUE,
    *,
    stream: str = "orders",
    target: str = "consumer:handle",
) -> dict[str, str]:
    return {line.key: line.value for line in lines_of(stream, target, options, checked, "/bin/python")}


def test_properties_of_a_function_have_defaults_without_an_option() -> None:
    assert properties() == {
        "applicationName": "orders-consumer-handle",
        "streamName": "orders",
        "executableName": "/bin/python -m kcl_client.run consumer:handle",
        "initialPositionInStream": "TRIM_HORIZON",
        "retrievalMode": "POLLING",
        "metricsLevel": "NONE",
        "deadLetterDestination": "file:orders-consumer-handle.dead-letters.jsonl",
        "schemaRegistry": "DECODE",
    }


@pytest.mark.parametrize("takes", ["record", "bytes", "text", "batch"])
def test_only_a_decoded_value_needs_schemas(takes: str) -> None:
    assert "schemaRegistry" not in properties(checked=Checked(takes=takes))


@pytest.mark.parametrize(
    ("stream", "target", "name"),
    [
        ("orders", "a.b:C.handle", "orders-a.b-C.handle"),
        ("orders", "src/my consumer.py:handle", "orders-my-consumer-handle"),
        ("arn:aws:kinesis:eu-west-1:111122223333:stream/orders", "c:f", "orders-c-f"),
        ("orders", f"{'m' * 300}:f", f"orders-{'m' * 193}"),
        ("orders", "größe:f", "orders-gr-e-f"),
    ],
)
def test_the_application_has_a_name_that_tables_may_have(stream: str, target: str, name: str) -> None:
    assert application_of(stream, target) == name


def test_an_arn_is_the_arn_of_the_stream() -> None:
    arn = "arn:aws:kinesis:eu-west-1:111122223333:stream/orders"
    assert properties(stream=arn)["streamArn"] == arn
    assert "streamName" not in properties(stream=arn)


def test_concurrency_is_of_calls_or_of_children() -> None:
    options = FunctionOptions(concurrency=8, checkpoint_every=2.5)
    words = "/bin/python -m kcl_client.run consumer:handle"
    children = properties(options)
    assert children["executableName"] == f"{words} --checkpoint-every 2.5"
    assert children["shardConcurrency"] == "8"
    calls = properties(options, replace(VALUE, is_async=True))
    assert calls["executableName"] == f"{words} --concurrency 8 --checkpoint-every 2.5"
    assert "shardConcurrency" not in calls
    with pytest.raises(click.UsageError, match="it takes a Batch"):
        properties(options, Checked(takes="batch", is_async=True))


@pytest.mark.parametrize(
    ("start", "key", "value"),
    [
        ("latest", "initialPositionInStream", "LATEST"),
        ("2026-11-20T12:00:00Z", "initialPositionInStreamExtended", "1795176000"),
    ],
)
def test_the_from_option_sets_the_initial_position(start: str, key: str, value: str) -> None:
    assert properties(FunctionOptions(start=start))[key] == value


def test_an_age_is_a_time() -> None:
    assert int(properties(FunctionOptions(start="2h"))["initialPositionInStreamExtended"]) > 1_700_000_000
    with pytest.raises(click.BadParameter):
        properties(FunctionOptions(start="soon"))


def test_set_overrides_and_leaves_out_what_the_command_sets() -> None:
    options = FunctionOptions(
        region="eu-west-1", changes=("retrievalMode = FANOUT", "deadLetterDestination=", "maxRecords=10")
    )
    found = properties(options)
    assert (found["retrievalMode"], found["maxRecords"], found["regionName"]) == ("FANOUT", "10", "eu-west-1")
    assert "deadLetterDestination" not in found


def test_a_path_with_a_space_is_refused() -> None:
    with pytest.raises(click.UsageError, match="executableName is split at spaces"):
        properties(target="my consumer.py:handle")


def loaded(*changes: str, **environment: str) -> Loaded:
    lines = lines_of("orders", "consumer:handle", FunctionOptions(changes=changes), VALUE, "/bin/python")
    return loaded_from(lines, worker_id="w", environment=environment)


def test_the_file_means_the_same_and_is_easy_to_read() -> None:
    text = as_file(loaded("workerId=back\\slash: =", "maxRecords=10"), "kcl-daemon run x")
    assert text.startswith("# the same as: kcl-daemon run x\n")
    assert "executableName = /bin/python -m kcl_client.run consumer:handle\n" in text
    assert "workerId = back\\\\slash: =\n" in text
    assert "deadLetterDestination = file:orders-consumer-handle.dead-letters.jsonl\n" in text


def test_variables_override_options() -> None:
    assert loaded("maxRecords=10", KCL_MAX_RECORDS="20").settings.retrieval.max_records == 20


def test_a_wrong_value_names_its_option() -> None:
    with pytest.raises(ConfigurationError, match=r"^--set: maxRecords = x: not a whole number"):
        loaded("maxRecords=x")
    with pytest.raises(ConfigurationError, match=r"^environment, KCL_MAX_RECORDS: "):
        loaded(KCL_MAX_RECORDS="x")
    with (
        pytest.raises(ConfigurationError, match=r"^kcl-daemon run: metricsLevel is odd\n--set: b$"),
        naming_options([Line("metricsLevel", "NONE"), Line("b", "1", "--set")]),
    ):
        raise ConfigurationError("kcl-daemon run:1: metricsLevel is odd\nkcl-daemon run:2: b")


def test_an_unknown_property_is_an_error_but_not_one_of_the_environment() -> None:
    with pytest.raises(
        ConfigurationError, match="--set: maxRecord is not a property; did you mean maxRecords"
    ):
        loaded("maxRecord=1")
    assert loaded(KCL_SOMETHING_ELSE="1").warnings


def test_letters_are_told_with_their_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert letters_of(loaded()) == f"file:{tmp_path}/orders-consumer-handle.dead-letters.jsonl"
    assert letters_of(loaded("deadLetterDestination=kinesis:dead")) == "kinesis:dead"
    assert letters_of(loaded("deadLetterDestination=")) == "none"


def test_options_can_be_given_again() -> None:
    options = FunctionOptions(
        application="a", concurrency=2, changes=("a=1", "b=2"), local=True, until_eof=True
    )
    assert list(options.words()) == [
        "--application=a",
        "--concurrency=2",
        "--set=a=1",
        "--set=b=2",
        "--local",
        "--until-eof",
    ]
    assert options.given()[:2] == ("--application", "--concurrency")
    assert NONE.given() == ()


def test_a_reload_looks_at_the_users_python_files(tmp_path: Path) -> None:
    for name in (
        "a.py",
        "b/c.py",
        ".venv/d.py",
        "venv/pyvenv.cfg",
        "venv/lib/e.py",
        "node_modules/f.py",
        "g.txt",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("1")
    before = stamps_of([tmp_path])
    assert sorted(before) == [f"{tmp_path}/a.py", f"{tmp_path}/b/c.py"]
    (tmp_path / "b" / "c.py").write_text("22")
    (tmp_path / "a.py").unlink()
    (tmp_path / "h.py").touch()
    now = stamps_of([tmp_path])
    assert changed(before, now) == [f"{tmp_path}/{name}" for name in ("a.py", "b/c.py", "h.py")]
    os.utime(tmp_path / "h.py", (1, 1))
    assert changed(now, stamps_of([tmp_path])) == [f"{tmp_path}/h.py"]


def test_the_folder_of_a_file_elsewhere_is_looked_at_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    monkeypatch.chdir(here)
    assert folders_of("consumer:handle") == [here]
    assert folders_of("parts/consumer.py:handle") == [here]
    assert folders_of("../there/consumer.py:handle") == [here, there]


def test_a_python_whose_path_has_a_space_is_named_as_path_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "my project" / "bin" / "python3"
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin")
    assert python_word(str(program)) == "python3", "its environment is active"
    monkeypatch.setenv("PATH", "/usr/bin")
    assert python_word(str(program)) == str(program), "refused later, with advice"
    assert python_word("/bin/python3") == "/bin/python3"
