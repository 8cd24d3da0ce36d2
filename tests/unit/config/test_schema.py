"""The JSON Schema of the properties: valid, complete, and never stricter than the daemon."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from kcl_daemon.config.kinds import InvalidValue, Key
from kcl_daemon.config.properties import parse
from kcl_daemon.config.schema import document
from kcl_daemon.config.settings import BY_NAME, INERT, KEYS
from kcl_daemon.config.spark import REMOVED
from tests.examples import examples
from tests.unit.config.test_reference import ROOT, SAMPLES

SCHEMA: Final = document()
PROPERTIES: Final[dict[str, Any]] = SCHEMA["properties"]
VALIDATORS: Final = {key.name: Draft202012Validator(PROPERTIES[key.name]) for key in KEYS}
WHOLE: Final = Draft202012Validator(SCHEMA)
GOOD: Final[dict[str, Any]] = {"executableName": "true", "applicationName": "a", "streamName": "orders"}
# Values of every kind, and near misses of them.
TEXTS: Final = (
    *("", " ", "0", "-1", "+7", "1.5", ".5", "1e2", "600", "99999999999999999999999", "12a", "maybe", "!", "\0", "a b"),
    *("true", "NO", "y", "auto", "AUTO", "tip", "2026-11-20", "P1D", "pt1.5s", "PT", "a=b, c = d", "=b", "clicks"),
    *("http://a:1", "HTTPS://b", "http://a?b", "arn:aws:kinesis:eu-west-1:111122223333:stream/s", "arn:x", "::1"),
    *("local[2]", "2g", "a:b", "file:x", "s3://bucket/x", "none", "parents_first:2", "{}", "[", "kcl_1_0", "16, s=2"),
)  # fmt: skip
# Whether a path, a list or a command is good is not for a pattern to say.
ANY_TEXT_BUT_NONE: Final = "\\S[\\s\\S]*"


def takes(key: Key, text: str) -> bool:
    try:
        key.kind.read(text)
    except InvalidValue:
        return False
    return True


def test_it_is_a_valid_schema_of_every_property() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert set(PROPERTIES) == {*BY_NAME, *INERT, *REMOVED}
    assert all(PROPERTIES[name]["deprecated"] for name in INERT)
    assert all(len(PROPERTIES[key.name]["description"]) > 30 for key in KEYS)


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.name)
def test_each_value_that_the_daemon_reads_is_valid_in_the_schema(key: Key) -> None:
    value = SAMPLES.get(key.name, "600").partition("\n")[0]
    for text in (value, *(each for each in TEXTS if takes(key, each))):
        assert VALIDATORS[key.name].is_valid(text), text
        as_yaml = yaml.safe_load(text) if text.isalnum() else text
        assert VALIDATORS[key.name].is_valid(as_yaml), as_yaml


@given(key=st.sampled_from(KEYS), text=st.text(max_size=20) | st.from_regex(r"\A[ -~]{0,20}\Z"))
@settings(max_examples=examples(300))
def test_whatever_the_daemon_reads_is_valid(key: Key, text: str) -> None:
    assert VALIDATORS[key.name].is_valid(text) or not takes(key, text)


@pytest.mark.parametrize(
    "key", [key for key in KEYS if key.kind.form.pattern != ANY_TEXT_BUT_NONE], ids=lambda key: key.name
)
def test_most_values_that_the_daemon_refuses_are_not_valid_in_the_schema(key: Key) -> None:
    bad = [text for text in TEXTS if not takes(key, text)]
    found = [text for text in bad if not VALIDATORS[key.name].is_valid(text)]
    assert len(found) > len(bad) / 2, set(bad) - set(found)


@pytest.mark.parametrize(
    "key", [key for key in KEYS if key.kind.form.type == "integer"], ids=lambda key: key.name
)
def test_a_number_out_of_its_range_is_not_valid(key: Key) -> None:
    low, high = key.kind.form.low, key.kind.form.high
    assert low is not None
    assert high is not None
    for number in (int(low) - 1, int(low), int(high), int(high) + 1):
        assert VALIDATORS[key.name].is_valid(number) is takes(key, str(number)), number


def test_defaults_are_valid() -> None:
    given_ones = {name: each["default"] for name, each in PROPERTIES.items() if "default" in each}
    assert len(given_ones) > 80
    assert list(WHOLE.iter_errors({**given_ones, **GOOD})) == []


@pytest.mark.parametrize(
    "path",
    sorted([*ROOT.glob("clients/samples/[!p]*/app.properties"), *ROOT.glob("packaging/*/app.properties")]),
    ids=lambda path: path.parent.name,
)
def test_files_that_are_shipped_are_valid(path: Path) -> None:
    entries = {entry.key: entry.value for entry in parse(path.read_bytes())}
    assert [error.message for error in WHOLE.iter_errors(entries)] == []
    colons = "".join(f"{key}: {value}\n" for key, value in entries.items())
    assert [error.message for error in WHOLE.iter_errors(yaml.safe_load(colons))] == []


@pytest.mark.parametrize(
    ("more", "valid"),
    [
        ({"maxRecords": "${MOST}"}, True),
        ({"sparkConf.spark.ui.enabled": False}, True),
        ({"dynamoDbClient.overrideConfiguration.apiCallTimeout": 5}, True),
        ({"awscredentialsprovider": "DefaultCredentialsProvider"}, True),
        ({"AWSCREDENTIALSPROVIDERDynamoDB": "DefaultCredentialsProvider"}, True),
        ({"userAgent": "x"}, True),
        ({"streamName": "arn:aws:dynamodb:us-east-1:000000000000:table/t/stream/2025"}, True),
        ({"recordFilter": {"data": {"type": ["new"]}}}, True),
        ({"regionName": ""}, False),
        ({"streamArn": None}, True),
        ({"failoverTimeMilis": 1}, False),
        ({"sparkRemote": "sc://x"}, False),
        ({"awscredentialsproviderdynamodb": "x"}, False),
        ({"maxRecords": 10_001}, False),
    ],
)
def test_single_rules(more: dict[str, Any], valid: bool) -> None:
    assert WHOLE.is_valid({**GOOD, **more}) is valid


@pytest.mark.parametrize("missing", GOOD)
def test_a_file_without_a_required_property_is_not_valid(missing: str) -> None:
    assert not WHOLE.is_valid({name: value for name, value in GOOD.items() if name != missing})
    instead = {"streamName": {"streamNames": "a, b"}, "executableName": {"landing": "x"}}.get(missing)
    if instead is not None:
        rest = {name: value for name, value in GOOD.items() if name != missing}
        assert WHOLE.is_valid({**rest, **instead})
