"""A thousand generated properties files: read, written out, read again; and with bad values in them."""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcl_daemon.config.kinds import InvalidValue, Key, trimmed, truth
from kcl_daemon.config.load import Loaded, as_properties, default_of, effective, interpret
from kcl_daemon.config.settings import KEYS
from kcl_daemon.errors import ConfigurationError
from kcl_daemon.text import shown
from tests.examples import examples
from tests.unit.config.helpers import WORKER
from tests.unit.config.test_reference import SAMPLES

FILES: Final = 1_000
REQUIRED: Final = ("executableName", "applicationName", "streamName")
# Values that are good by themselves and not together: `checks` has its own tests.
TOGETHER: Final = frozenset(
    {
        "leaderLeaseMillis",
        "leaderHeartbeatMillis",
        "childRestartBackoffMillis",
        "childRestartBackoffMaxMillis",
        "childPreload",
        "landing",
        "landingMaxBytes",
        "landingMemoryBytes",
        "shardConcurrency",
        "workerMetricsBillingMode",
        "coordinatorStateBillingMode",
        "expandEnvironment",
        "streamArns",
        "streamNames",
        "streamFilter",
        "snapshot",
        "tableName.source",
        "batchWindowMillis",
        "batchMaxRecords",
        "batchMaxBytes",
        "streamIdentifiersForLeaseCleanup",
        "formerStreamsLeasesDeletionStrategy",
        "poisonRecordPolicy",
        "runUntil",
        "deadLetterDestination",
        "maxRecordAgeMillis",
        "maxRecordAttempts",
        "deadLetterOverflow",
        "adminAddress",
        "adminToken",
        "adminTokenFile",
    }
)
FREE: Final = tuple(key for key in KEYS if key.name not in TOGETHER)
JUNK: Final = (
    "",
    " ",
    "abc",
    "-1",
    "0x10",
    "1e999",
    "10_000",
    "true false",
    "\u00e9",
    "a=b=c",
    "|",
    ",",
    "P",
    "${X}",
)


def reads(key: Key, text: str) -> bool:
    """Whether the text is a value of the key."""
    try:
        key.kind.read(text)
    except InvalidValue:
        return False
    return True


def good(key: Key) -> st.SearchStrategy[str]:
    """Texts that are values of a key."""
    allowed = key.kind.allowed
    fixed = [
        text
        for text in (SAMPLES.get(key.name, "600").partition("\n")[0], default_of(key))
        if reads(key, text)
    ]
    choices = [word for word in allowed.split(" or ") if reads(key, word)]
    if allowed == truth().allowed:
        fixed += allowed.split(", ")
    elif len(choices) > 1:
        fixed += [*choices, *(word.lower() for word in choices)]
    texts = st.sampled_from(fixed) if fixed else st.nothing()
    bounds = re.match(r"([0-9]+) to ([0-9]+)(?: |$)", allowed)
    if bounds is not None and reads(key, bounds[1]):
        texts |= st.integers(int(bounds[1]), int(bounds[2])).map(str)
    return texts


def bad(key: Key) -> st.SearchStrategy[str]:
    """Texts that are not."""
    texts = st.sampled_from(JUNK) | st.text(st.characters(max_codepoint=255), max_size=30)
    return texts.filter(lambda text: not reads(key, text) and not (key.blank_is_absent and not trimmed(text)))


def escaped(text: str) -> str:
    """As a value of a properties file."""
    return "".join(
        f"\\u{ord(each):04x}" if not "!" <= each <= "~" or each in "\\#!=:" else each for each in text
    )


@st.composite
def files(draw: st.DrawFn) -> dict[str, str]:
    """Values of some keys, the required ones among them."""
    chosen = draw(st.lists(st.sampled_from(FREE), unique_by=lambda key: key.name, max_size=25))
    names = {key.name for key in chosen}
    chosen += [key for key in KEYS if key.name in REQUIRED and key.name not in names]
    return {draw(st.sampled_from((key.name, *key.aliases))): draw(good(key)) for key in chosen}


def load(values: dict[str, str]) -> Loaded:
    """What a file of these values means."""
    text = "".join(f"{name} = {escaped(value)}\n" for name, value in values.items())
    return interpret(text.encode("ascii"), file="app.properties", default_worker_id=WORKER)


def in_force(loaded: Loaded, *, but: AbstractSet[str]) -> list[str]:
    return [each.value for each in effective(loaded) if each.key not in but]


@pytest.mark.parametrize("key", FREE, ids=lambda key: key.name)
def test_there_are_good_and_bad_values_of_every_key(key: Key) -> None:
    assert not good(key).is_empty
    assert any(not reads(key, text) for text in JUNK)


@settings(max_examples=examples(FILES), deadline=None)
@given(files())
def test_a_file_that_is_read_written_out_and_read_again_means_the_same(values: dict[str, str]) -> None:
    first = load(values)
    written = as_properties(first)
    again = interpret(written.encode("iso-8859-1"), file="again", default_worker_id=WORKER)
    assert again.settings == first.settings
    assert as_properties(again) == written
    # An ARN of which only the name is used is written out as that name.
    by_name = {each.key for each in effective(first) if each.origin == "only its name is used"}
    assert in_force(again, but=by_name) == in_force(first, but=by_name)


@settings(max_examples=examples(FILES), deadline=None)
@given(files(), st.data())
def test_each_bad_value_is_one_error_with_key_and_value_and_nothing_starts(
    values: dict[str, str], data: st.DataObject
) -> None:
    names = {key.name: key for key in FREE}
    spoilt = data.draw(st.lists(st.sampled_from(sorted(set(values) & set(names))), unique=True, min_size=1))
    values |= {name: data.draw(bad(names[name])) for name in spoilt}
    with pytest.raises(ConfigurationError) as caught:
        load(values)
    lines = str(caught.value).splitlines()
    assert len(lines) == len(spoilt)
    for name in spoilt:
        (line,) = (each for each in lines if re.match(rf"app\.properties:[0-9]+: {re.escape(name)} = ", each))
        assert f" = {shown(values[name], name=name)}: " in line
        assert line.isprintable()
