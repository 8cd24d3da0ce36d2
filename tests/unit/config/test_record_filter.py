"""`recordFilter` in a file: over several lines, and refused with line and place."""

from __future__ import annotations

from kcl_daemon.records.record_filter import RecordFilter
from tests.unit.config.helpers import read, refusals

PATTERN = '{"data": {"order": {"type": ["new"]}}}'


def test_a_pattern_may_take_several_lines() -> None:
    found = read(
        'recordFilter = {"data": \\\n   {"order": {"type": ["new"]}}}\n'
    ).settings.delivery.record_filter
    assert found == RecordFilter.of('{"data": {"order": {"type": ["new"]}}}')
    assert read().settings.delivery.record_filter is None


def test_a_wrong_pattern_is_refused_with_its_line_and_place() -> None:
    (refusal,) = refusals('recordFilter = {"data": {"order": {"type": ["new", {"prefx": "a"}]}}}\n')
    assert refusal.startswith("app.properties:4: recordFilter = ")
    assert "at data.order.type[1]: unknown operator 'prefx'" in refusal
    (refusal,) = refusals("recordFilter = new\n")
    assert "no JSON at line 1 column 1" in refusal
