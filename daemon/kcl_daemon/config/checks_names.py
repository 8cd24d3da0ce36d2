"""What is named after the application where it has no name of its own, and what the application must be called for that.

Pure. Works on values that are good by themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kcl_daemon.config.fan_out_settings import RetrievalMode
from kcl_daemon.config.keys import APPLICATION_NAME
from kcl_daemon.config.keys_fan_out import RETRIEVAL_MODE
from kcl_daemon.config.keys_spark import SPARK_ENGINE, SPARK_PIPELINE, SPARK_STATE_DIR
from kcl_daemon.config.kinds import trimmed
from kcl_daemon.config.metrics_settings import MetricsLevel
from kcl_daemon.config.notices import Problem
from kcl_daemon.config.properties import Entry

_CONSUMER_ARN: Final = "fanoutConfig.consumerArn"
_METRICS_LEVEL: Final = "metricsLevel"


@dataclass(frozen=True, slots=True)
class _Named:
    """Something that is named after the application.

    Args:
        what: it is.
        key: the property that gives it another name.
        most: characters that the application's name may have for it.
        least: such characters.
        marks: which there may be beside letters and digits, as a set of a pattern.
    """

    what: str
    key: str
    most: int
    least: int = 1
    marks: str = "_.-"

    def allows(self, name: str) -> bool:
        """Whether it can be named after an application of that name."""
        return re.fullmatch(rf"(?!AWS/)[A-Za-z0-9{self.marks}]{{{self.least},{self.most}}}", name) is not None


# DynamoDB takes 3 to 255 characters, a folder has 255 at most; less what is put behind the name.
_TABLES: Final = (
    _Named("the lease table", "tableName", 255, least=3),
    _Named("the worker metrics table", "workerMetricsTableName", 255 - len("-WorkerMetricStats")),
    _Named("the coordinator table", "coordinatorStateTableName", 255 - len("-CoordinatorState")),
)
_CONSUMER: Final = _Named("the fan-out consumer", "fanoutConfig.consumerName", 128)
_NAMESPACE: Final = _Named("the CloudWatch namespace", "metricsNamespace", 255, marks="_.#:/-")
_STATE: Final = _Named("the Spark state folder", SPARK_STATE_DIR.name, 255 - len("-spark"))


def of_names(values: Mapping[str, object], entries: Mapping[str, Entry]) -> Iterator[Problem]:
    """What must be put right (KCL: ConfigsBuilder has the same defaults, and looks at none of them).

    Args:
        values: by key name, good ones only.
        entries: what was written of each.
    """
    name = values.get(APPLICATION_NAME.name)
    if not isinstance(name, str):
        return
    refusing = [each for each in _named(values, entries) if not each.allows(name)]
    if refusing:
        entry = entries[APPLICATION_NAME.name]
        yield Problem(_reason(refusing), entry.key, entry.value, entry.line, entry.variable)


def _named(values: Mapping[str, object], entries: Mapping[str, Entry]) -> Iterator[_Named]:
    """All that has no name of its own; a bad one was meant to be one."""

    def is_given(key: str) -> bool:
        entry = entries.get(key)
        return entry is not None and bool(trimmed(entry.value))

    needed = list(_TABLES)
    if values.get(RETRIEVAL_MODE.name) is RetrievalMode.FANOUT and not is_given(_CONSUMER_ARN):
        needed.append(_CONSUMER)
    if values.get(_METRICS_LEVEL) is not MetricsLevel.NONE:
        needed.append(_NAMESPACE)
    if is_given(SPARK_PIPELINE.name) and not is_given(SPARK_ENGINE.name):
        needed.append(_STATE)
    yield from (each for each in needed if not is_given(each.key))


def _reason(refusing: Sequence[_Named]) -> str:
    """Why the name is not taken, and the two ways out."""
    least, most = max(each.least for each in refusing), min(each.most for each in refusing)
    marks = "dots, dashes and underscores"
    if list(refusing) == [_NAMESPACE]:
        marks = "_ . # : / -, not beginning with AWS/"
    whats, keys = _and(each.what for each in refusing), _and(each.key for each in refusing)
    return (
        f"not a valid name; allowed: {least} to {most} letters, digits, {marks}, because {whats} "
        f"{'is' if len(refusing) == 1 else 'are'} named after it; to keep the name, set {keys}"
    )


def _and(words: Iterator[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last
