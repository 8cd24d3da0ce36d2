"""What the properties of streams must agree on: one stream or many, and what cannot be had with many.

Pure. Works on values that are good by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from kcl_daemon.config.key import Key
from kcl_daemon.config.keys import STREAM_ARN, STREAM_NAME
from kcl_daemon.config.keys_spark import SPARK_PIPELINE
from kcl_daemon.config.keys_streams import FORMER_GIVEN, STREAM_ARNS, STREAM_FILTER, STREAM_NAMES
from kcl_daemon.config.notices import Problem
from kcl_daemon.config.properties import Entry
from kcl_daemon.config.stream_settings import FormerStreams, ListedStream

_MANY: Final = (STREAM_ARNS, STREAM_NAMES, STREAM_FILTER)
_FAN_OUT_CONSUMER: Final = "fanoutConfig.consumerArn"
_STRATEGY: Final = "formerStreamsLeasesDeletionStrategy"


def of_streams(values: Mapping[str, object], entries: Mapping[str, Entry]) -> Iterator[Problem]:
    """What must be put right.

    Args:
        values: by key name, good ones only.
        entries: what was written of each.
    """
    many = next((key for key in _MANY if key.name in values), None)
    if many is None:
        return
    for name, reason in (*_beside(values, many.name), *_among(values)):
        entry = entries[name]
        yield Problem(reason, entry.key, entry.value, entry.line, entry.variable)


def _beside(values: Mapping[str, object], many: str) -> Iterator[tuple[str, str]]:
    """Properties that cannot be beside a list of streams."""
    for name, reason in (
        (STREAM_NAME.name, f"names one stream, {many} names many; keep one"),
        (STREAM_ARN.name, f"names one stream, {many} names many; keep one"),
        (SPARK_PIPELINE.name, f"a Spark pipeline reads one stream; {many} names many"),
        (
            _FAN_OUT_CONSUMER,
            f"a consumer belongs to one stream; with {many} use fanoutConfig.consumerName",
        ),
    ):
        if name in values:
            yield name, reason


def _among(values: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """What the properties of many streams must agree on."""
    regions = regions_of(values)
    if len(regions) > 1:
        yield STREAM_ARNS.name, f"several regions ({', '.join(regions)}); a daemon reads one region"
    given = values.get(_STRATEGY) is FormerStreams.DELETE_GIVEN
    if given != (FORMER_GIVEN.name in values):
        wrong = _STRATEGY if given else FORMER_GIVEN.name
        other = FORMER_GIVEN.name if given else f"{_STRATEGY} = {FormerStreams.DELETE_GIVEN.value}"
        yield wrong, f"needs {other}"
    named = {each.name for each in _listed(values, STREAM_NAMES)}
    for each in _listed(values, STREAM_ARNS):
        if each.name in named:
            reason = f"{each.name} is in {STREAM_NAMES.name} too; if you mean both, give both by ARN"
            yield STREAM_ARNS.name, reason


def regions_of(values: Mapping[str, object]) -> tuple[str, ...]:
    """The regions of all streams that are given by ARN."""
    arns = (each.arn for each in _listed(values, STREAM_ARNS))
    return tuple(dict.fromkeys(arn.split(":")[3] for arn in arns if arn is not None))


def _listed(values: Mapping[str, object], key: Key) -> tuple[ListedStream, ...]:
    found = values.get(key.name, ())
    assert isinstance(found, tuple), f"{key.name} is a list"
    return tuple(each for each in found if isinstance(each, ListedStream))
