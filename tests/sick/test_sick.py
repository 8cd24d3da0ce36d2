"""Each sickness is seen as its fixture says: the alert in time and without a gap, the cause in words, and an end."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.sick.all import SICKNESSES
from tests.sick.healthy import HEALTHY, Healthy, alarms
from tests.sick.promql import Store, samples
from tests.sick.promtool import PROMTOOL, complaints
from tests.sick.rules import firings, rules
from tests.sick.runbook import PAGE, written
from tests.sick.sickness import Sickness, broken_promises, played
from tests.sick.stage import MIB


def _one(sickness: Sickness) -> object:
    return pytest.param(sickness, id=sickness.name, marks=() if sickness.daily else (pytest.mark.prove,))


_MEMORY = "kcl_child_resident_memory_bytes"
EVENTS = PAGE.with_name("events.md")
each_sickness = pytest.mark.parametrize("sickness", [_one(each) for each in SICKNESSES])


@each_sickness
def test_a_sickness_is_seen_as_promised(sickness: Sickness) -> None:
    assert list(broken_promises(played(sickness))) == []


@each_sickness
@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed: the rules WERE NOT COMPARED"
)
def test_prometheus_own_tool_finds_the_same_alerts(sickness: Sickness, tmp_path: Path) -> None:
    assert PROMTOOL is not None
    course = played(sickness)
    assert complaints(course.store, course.firings, sickness.until_s, tmp_path) == ""
    assert complaints(course.store, (), sickness.until_s, tmp_path) != "", "it would notice"


@pytest.mark.parametrize("healthy", HEALTHY, ids=lambda each: str(each.name))
@pytest.mark.prove
def test_nothing_fires_in_six_hours_of_a_fleet_that_is_well(healthy: Healthy) -> None:
    assert alarms(healthy, 6.0) == ()


def test_nothing_fires_while_a_fleet_is_deployed() -> None:
    deploys = next(each for each in HEALTHY if each.name == "deploys")
    assert alarms(deploys, 0.5) == ()


@pytest.mark.parametrize(("mib_per_h", "hours", "fires"), [(240, 5, True), (20, 12, False)])
def test_a_child_that_leaks_slowly_is_a_ticket_and_a_cache_that_fills_is_none(
    mib_per_h: int, hours: int, *, fires: bool
) -> None:
    store, until_s = Store(), 3600 * hours
    for at_s in range(0, until_s, 60):
        size = (500 + mib_per_h * at_s / 3600) * MIB
        store.scraped("worker", at_s, samples(f"{_MEMORY} {size}", job="j", instance="w"))
    found = [each for each in firings(store, until_s) if each.alert == "KclChildMemoryGrows"]
    assert bool(found) is fires
    assert all(each.from_s < 3 * 3600 for each in found)


def test_an_alert_counts_each_unread_shard_once_though_leader_and_watcher_do() -> None:
    course = played(next(each for each in SICKNESSES if each.name == "half of the shards have no room"))
    rule = next(rule for rule in rules() if rule.alert == course.sickness.alert)
    found = rule.query(course.store, course.sickness.healed_s)
    assert isinstance(found, dict)
    assert list(found.values()) == [2.0]


def test_no_alert_names_only_lines_of_the_log_that_many_do_not_keep() -> None:
    page = EVENTS.read_text("utf-8")
    quiet = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    events = quiet | set(re.findall(r"^### (\w+)$", page, re.MULTILINE))
    said = {each.alert: each.annotations["description"] for each in rules()}
    named = {alert: set(re.findall(r"\b(?!kcl_)[a-z]+(?:_[a-z]+)+\b", text)) for alert, text in said.items()}
    assert set().union(*named.values()) <= events
    told_quietly = {alert for alert, words in named.items() if words & quiet}
    assert told_quietly == {"KclRecordsRejected"}
    assert all("status page" in said[alert] for alert in told_quietly)


def test_the_table_of_the_runbook_is_current() -> None:
    page = PAGE.read_text("utf-8")
    assert page == written(page), "run: python -m tests.sick.runbook"


def test_sicknesses_have_names_of_their_own_and_alerts_that_are_shipped() -> None:
    names = [each.name for each in SICKNESSES]
    assert len(set(names)) == len(names)
    assert {each.alert for each in SICKNESSES} <= {rule.alert for rule in rules()}
    assert all(each.also <= {rule.alert for rule in rules()} for each in SICKNESSES)
