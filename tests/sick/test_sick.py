"""Each sickness is seen as its fixture says: the alert in time and without a gap, the cause in words, and an end."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.sick.all import SICKNESSES
from tests.sick.promtool import PROMTOOL, complaints
from tests.sick.rules import rules
from tests.sick.sickness import Sickness, broken_promises, played


def _one(sickness: Sickness) -> object:
    return pytest.param(sickness, id=sickness.name, marks=() if sickness.daily else (pytest.mark.prove,))


each_sickness = pytest.mark.parametrize("sickness", [_one(each) for each in SICKNESSES])


@each_sickness
def test_a_sickness_is_seen_as_promised(sickness: Sickness) -> None:
    assert list(broken_promises(played(sickness))) == []


@each_sickness
@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool, of Debian's package prometheus")
def test_prometheus_own_tool_finds_the_same_alerts(sickness: Sickness, tmp_path: Path) -> None:
    assert PROMTOOL is not None
    course = played(sickness)
    assert complaints(course.store, course.firings, sickness.until_s, tmp_path) == ""
    assert complaints(course.store, (), sickness.until_s, tmp_path) != "", "it would notice"


def test_sicknesses_have_names_of_their_own_and_alerts_that_are_shipped() -> None:
    names = [each.name for each in SICKNESSES]
    assert len(set(names)) == len(names)
    assert {each.alert for each in SICKNESSES} <= {rule.alert for rule in rules()}
    assert all(each.also <= {rule.alert for rule in rules()} for each in SICKNESSES)
