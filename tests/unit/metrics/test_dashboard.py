"""Dashboard and alert rules ask for metrics that exist, in ways that make sense of their kind."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kcl_daemon.metrics.metric import Family, MetricKind
from tools.metrics_reference import FAMILIES

PACKAGING = Path(__file__).parents[3] / "packaging"
BY_SAMPLE = {name: family for family in FAMILIES for name in family.sample_names}
# Of the target, of the process, and of what scrapers add.
COMMON_LABELS = {"job", "instance", "le"}
SELECTOR = re.compile(r"\b((?:kcl|process)_\w+)(\{[^}]*\})?(\[[^\]]+\])?")


def dashboard() -> dict[str, Any]:
    return dict(json.loads((PACKAGING / "grafana" / "dashboard.json").read_text("utf-8")))


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load((PACKAGING / "prometheus" / "alerts.yml").read_text("utf-8"))
    return [rule for group in document["groups"] for rule in group["rules"]]


def expressions() -> Iterator[tuple[str, str]]:
    for panel in panels():
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for rule in rules():
        yield rule.get("alert") or rule["record"], rule["expr"]


def used() -> Iterator[tuple[str, Family, str, str, str]]:
    """Where, family, labels, range and the whole expression, for each metric of ours that is asked for."""
    for where, expression in expressions():
        for name, labels, span in SELECTOR.findall(expression):
            if name.startswith("kcl_"):
                assert name in BY_SAMPLE, f"{where}: there is no {name}"
                yield where, BY_SAMPLE[name], labels, span, expression


def test_all_that_is_asked_for_exists() -> None:
    asked = {family.name for _, family, *_ in used()}
    assert len(asked) > 25


def test_labels_are_those_of_the_metric() -> None:
    for where, family, labels, _, expression in used():
        known = set(family.labels) | COMMON_LABELS
        selected = set(re.findall(r"(\w+)(?:=~|!=|=)", labels))
        assert selected <= known, f"{where}: {selected - known}"
        if len(SELECTOR.findall(expression)) == 1:
            grouped = re.findall(r"by \(([^)]*)\)", expression)
            named = {label.strip() for group in grouped for label in group.split(",")}
            assert named <= known, f"{where}: {named - known}"


def test_a_metric_that_only_grows_is_shown_as_a_rate() -> None:
    for where, family, labels, span, expression in used():
        grows = family.kind is not MetricKind.GAUGE
        if grows and not span:
            # As it is only where there is nothing yet that it could have grown from.
            name = f"{family.sample_names[0]}{labels}"
            of_the_young = f"({name} and on (job, instance) kcl_worker_uptime_seconds < "
            newly_come = f"({name} unless {name} offset $__rate_interval) or increase({name}["
            assert of_the_young in expression or newly_come in expression, f"{where}: {family.name}"
        else:
            compared = f"_over_time({family.sample_names[0]}{labels}[" in expression
            assert bool(span) is grows or compared, f"{where}: {family.name}"


def test_braces_are_closed() -> None:
    for where, expression in expressions():
        for opening, closing in ("()", "{}", "[]"):
            assert expression.count(opening) == expression.count(closing), where


def test_units_of_panels_are_those_of_what_they_show() -> None:
    for panel in panels():
        unit = panel["fieldConfig"]["defaults"]["unit"]
        for target in panel["targets"]:
            names = [name for name, *_ in SELECTOR.findall(target["expr"])]
            if target["expr"].startswith("count"):
                assert unit == "short"
            elif (
                any("_seconds" in name and "cpu" not in name for name in names)
                and "_count" not in target["expr"]
            ):
                assert unit == "s", panel["title"]
            elif any(name.endswith("_bytes") for name in names):
                assert unit == "bytes", panel["title"]


def test_panels_do_not_overlap_and_have_numbers_of_their_own() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    numbers = [panel["id"] for panel in dashboard()["panels"]]
    assert len(set(numbers)) == len(numbers)


def test_the_dashboard_is_for_any_data_source_and_job() -> None:
    names = [each["name"] for each in dashboard()["templating"]["list"]]
    assert names == ["datasource", "job"]
    for panel in panels():
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"
            assert '{job=~"$job"' in target["expr"], panel["title"]


@pytest.mark.parametrize(
    "rule", [rule for rule in rules() if "alert" in rule], ids=lambda rule: str(rule["alert"])
)
def test_an_alert_says_what_happened_and_what_to_do(rule: dict[str, Any]) -> None:
    assert re.fullmatch(r"Kcl[A-Za-z]+", rule["alert"])
    assert rule["labels"]["severity"] in {"page", "ticket"}
    assert rule["annotations"]["summary"] and rule["annotations"]["description"].endswith(".")
    assert re.search(r"[<>=]\s*-?[0-9.]+$", rule["expr"])
    assert re.fullmatch(r"[0-9]+[smh]", rule.get("for", "1m"))
    # What is spoken of must be known: labels that an aggregation has dropped are empty in the text.
    spoken = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
    kept = {
        name.strip() for group in re.findall(r"by \(([^)]*)\)", rule["expr"]) for name in group.split(",")
    }
    assert spoken <= kept


def test_alerts_have_names_of_their_own() -> None:
    names = [rule.get("alert") or rule["record"] for rule in rules()]
    assert len(set(names)) == len(names)
