"""What the properties of failing children must agree on.

Pure. Works on values that are good by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kcl_daemon.config.failure_settings import ChildFailurePolicy, FailureSettings, PoisonRecordPolicy
from kcl_daemon.config.keys_failures import (
    DEAD_LETTERS,
    FAILURE_POLICY,
    FAILURES_MOST,
    POISON_POLICY,
    POISON_TRIES,
)
from kcl_daemon.config.keys_spark import SPARK_PIPELINE
from kcl_daemon.config.notices import Problem
from kcl_daemon.config.properties import Entry


def of_failures(values: Mapping[str, object], entries: Mapping[str, Entry]) -> Iterator[Problem]:
    """What must be put right.

    Args:
        values: by key name, good ones only.
        entries: what was written of each.
    """
    for name, reason in _contradictions(values):
        entry = entries[name]
        yield Problem(reason, entry.key, entry.value, entry.line, entry.variable)


def _contradictions(values: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    poison = values.get(POISON_POLICY.name, PoisonRecordPolicy.RETRY)
    if poison is PoisonRecordPolicy.DEADLETTER and DEAD_LETTERS.name not in values:
        yield POISON_POLICY.name, f"needs {DEAD_LETTERS.name}"
    if poison is not PoisonRecordPolicy.DEADLETTER and DEAD_LETTERS.name in values:
        yield (
            DEAD_LETTERS.name,
            f"needs {POISON_POLICY.name} = {PoisonRecordPolicy.DEADLETTER.value}",
        )
    if poison is PoisonRecordPolicy.RETRY:
        return
    if values.get(FAILURE_POLICY.name) is ChildFailurePolicy.EXIT:
        reason = (
            f"with {FAILURE_POLICY.name} = {ChildFailurePolicy.EXIT.value} the daemon ends before it finds "
            "the record"
        )
        yield POISON_POLICY.name, f"{reason}; keep one of the two"
    if SPARK_PIPELINE.name in values:
        yield POISON_POLICY.name, f"children of a {SPARK_PIPELINE.name} do not process records themselves"
    yield from _too_few(values)


def _too_few(values: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """The lease must not be released before the record is found: what was found out goes with it."""
    defaults = FailureSettings()
    most = values.get(FAILURES_MOST.name, defaults.failures_most)
    tries = values.get(POISON_TRIES.name, defaults.poison_tries)
    assert isinstance(most, int), "a whole number"
    assert isinstance(tries, int), "a whole number"
    if not most or most > tries + 1:
        return
    wrong = FAILURES_MOST.name if FAILURES_MOST.name in values else POISON_TRIES.name
    what = f"a record is set aside after {tries + 1} failures, the lease is released after {most}"
    yield wrong, f"{what}; {FAILURES_MOST.name} must be above {POISON_TRIES.name} + 1, or 0"
