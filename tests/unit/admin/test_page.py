"""The page: valid HTML whatever it shows, nothing but text from outside, bounded, readable in both colour schemes."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final
from xml.etree.ElementTree import Element

import html5lib
import pytest
from hypothesis import given

from kcl_daemon.admin.page import MAX_ROWS, MAX_SHARDS, assets, live_part, page
from kcl_daemon.admin.view import ThroughputHistory
from kcl_daemon.telemetry.snapshot import Snapshot
from tests.examples import examples
from tests.unit.admin.stage import (
    CHILD,
    FOLLOWER,
    HOSTILE,
    LANED,
    READING,
    SNAPSHOT,
    SPARKING,
    STALLED,
    calmly,
    many,
    snapshots,
)
from tests.unit.metrics.snapshots import LANDER

ELEMENTS: Final = frozenset(
    [
        "html",
        "head",
        "meta",
        "title",
        "link",
        "style",
        "body",
        "a",
        "header",
        "h1",
        "small",
        "nav",
        "ul",
        "li",
        "p",
        "button",
        "span",
        "noscript",
        "main",
        "div",
        "dl",
        "dt",
        "dd",
        "section",
        "h2",
        "table",
        "caption",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "svg",
        "polyline",
        "code",
        "details",
        "summary",
        "pre",
        "footer",
        "script",
    ]
)


def rendered(snapshot: Snapshot, history: ThroughputHistory | None = None) -> str:
    return "".join(page(snapshot, history or ThroughputHistory(), now_s=0.0, every_s=2.0))


def parsed(text: str) -> Element:
    """The tree of a document that has no error."""
    tree: Element = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(text)
    return tree


def table_of(tree: Element, section: str) -> list[list[str]]:
    """The body of the table of a section, as text."""
    (found,) = [each for each in tree.iter("section") if each.get("id") == section]
    return [["".join(cell.itertext()).strip() for cell in row] for row in found.iterfind(".//tbody/tr")]


@given(snapshots)
@calmly(max_examples=examples(60))
def test_the_page_is_valid_and_holds_no_element_that_is_not_its_own(snapshot: Snapshot) -> None:
    tree = parsed(rendered(snapshot))
    tags = {str(each.tag).rpartition("}")[2] for each in tree.iter()}
    assert tags <= ELEMENTS
    assert len(list(tree.iter("script"))) == 1
    handlers = {name for each in tree.iter() for name in each.attrib if name.startswith("on")}
    assert handlers == set()


@given(snapshots)
@calmly(max_examples=examples(30))
def test_ids_are_there_once_and_labels_lead_to_them(snapshot: Snapshot) -> None:
    tree = parsed(rendered(snapshot))
    ids = [each.get("id") for each in tree.iter() if each.get("id") is not None]
    assert len(ids) == len(set(ids))
    labels = {each.get("aria-labelledby") for each in tree.iter()} - {None}
    anchors = {str(each.get("href"))[1:] for each in tree.iter("a") if str(each.get("href")).startswith("#")}
    assert labels | anchors <= set(ids)


def test_text_from_outside_is_shown_as_it_is() -> None:
    child = replace(CHILD, stderr=(HOSTILE, "2 < 3"))
    shard = replace(READING, key=HOSTILE, shard_id=HOSTILE, detail=HOSTILE, child=child)
    tree = parsed(rendered(replace(SNAPSHOT, application=HOSTILE, shards=(shard,), fleet=())))
    shown = "</script><script>alert(1)</script>\"'&\\x00\\x1b[31m"
    (heading,) = tree.iter("h1")
    assert heading.text == f"{shown} "
    assert table_of(tree, "shards")[0][0].startswith(f"{shown}, came out of ")
    (lines,) = tree.iter("pre")
    assert lines.text == f"{shown}\n2 < 3"


def test_every_table_has_a_caption_and_headings_of_columns_and_rows() -> None:
    tables = list(parsed(rendered(SNAPSHOT)).iter("table"))
    assert len(tables) == 4
    for table in tables:
        assert [each.tag for each in table] == ["caption", "thead", "tbody"]
        assert {cell.get("scope") for cell in table.iterfind("thead/tr/th")} == {"col"}
        for row in table.iterfind("tbody/tr"):
            assert [cell.get("scope") for cell in row.iterfind("th")] == ["row"]


def test_it_shows_the_fleet_the_shards_the_moves_and_the_children() -> None:
    tree = parsed(rendered(SNAPSHOT))
    assert table_of(tree, "fleet") == [
        ["w-1", "leader, this worker", "2", "44 %", "3 s ago"],
        ["w-2", "follower", "2", "-", "-"],
    ]
    shards = {cells[0]: cells[1:] for cells in table_of(tree, "shards")}
    assert [name.partition(",")[0] for name in shards][:3] == [
        f"shardId-{number:012}" for number in (2, 4, 1)
    ], "what needs attention comes first"
    assert shards["shardId-000000000001, came out of shardId-000000000000"] == [
        "reading",
        "90.0 s",
        "2 min",
        "250\u00a0ms, 93.5\u00a0s",
        "20\u00a0KiB/s",
        "12345",
        "",
        "496599...000000123456",
        "w-1",
    ]
    assert shards["shardId-000000000002, came out of shardId-000000000000"][:7] == [
        *("stalled", "-", "", "", "20\u00a0KiB/s", "12345", "kinesis for 5 min (Throttled: slow down)"),
    ]
    assert shards["shardId-000000000004"] == ["unowned", *[""] * 6, "TRIM_HORIZON", "-"]
    assert table_of(tree, "moves") == [["12 s ago", "shardId-000000000003", "w-2 -> w-1, cpu 81 % -> 44 %"]]
    assert table_of(tree, "children") == [
        ["shardId-000000000001", "4242", "48 MiB", "62 min", "2", "2 lineswarming up\nready"]
    ]


def test_a_shard_between_two_children_keeps_its_row_with_what_the_dead_one_said_last() -> None:
    failing = replace(READING, failures=8, restarts=7, child=None, stderr_tail=("ValueError: not an order",))
    running = replace(failing, key="shardId-000000000009", child=CHILD)
    tree = parsed(rendered(replace(SNAPSHOT, shards=(failing, running))))
    assert table_of(tree, "children") == [
        ["shardId-000000000001", "", "", "", "7", "1 lineValueError: not an order"],
        ["shardId-000000000009", "4242", "48 MiB", "62 min", "7", "1 lineValueError: not an order"],
    ]


def test_the_headline_answers_whether_it_is_behind_and_a_picture_can_be_dated() -> None:
    tree = parsed(rendered(SNAPSHOT))
    (found,) = [each for each in tree.iter("dl") if each.get("class") == "headline"]
    assert {div[0].text: div[1].text for div in found} == {
        "State": "not ready",
        "Worst lag": "90.0 s (shard 1)",
        "Throughput": "40 KiB/s",
        "Failing": "0",
        "Stalled": "1",
        "Unread": "-",
        "Paused": "0",
    }
    (place,) = [each for each in tree.iter("p") if each.get("class") == "place"]
    assert place.text == (
        "stream orders in eu-west-1, account 123456789012, 2026-11-20 12:03:51 UTC, uptime 24 h"
    )
    headings = [each.text for each in tree.iter("h2")]
    assert headings == ["Shards", "Fleet", "Children", "Last moves"]


def test_lineage_is_drawn_where_nothing_needs_attention() -> None:
    calm = replace(READING, lag_s=3.0)
    calm_too = replace(calm, key=STALLED.key, shard_id=STALLED.shard_id)
    tree = parsed(rendered(replace(SNAPSHOT, shards=(calm, calm_too))))
    names = [cells[0].partition(",")[0] for cells in table_of(tree, "shards")]
    assert names[1:3] == ["shardId-000000000000", "├─ shardId-000000000001"]


def test_it_shows_the_spark_engine_where_there_is_one() -> None:
    tree = parsed(rendered(SPARKING))
    assert table_of(tree, "spark") == [
        ["counts", "running", "12", "0 s ago", "100/s", "200/s", "1.25 s", "30", "4"],
        ["raw", "failed, starts again", "-", "40 s ago", "-", "-", "-", "-", "-"],
        ["shardId-000000000002", "1000", "900", "100", "2 min"],
        ["shardId-000000000001", "1000", "1000", "0", "-"],
    ]
    assert "http://127.0.0.1:4040" in "".join(tree.itertext())
    assert [each.text for each in tree.iter("a") if each.get("href") == "#spark"] == ["Spark"]
    assert 'id="spark"' not in rendered(SNAPSHOT)


def test_it_shows_the_landing_log_and_the_trouble_of_its_store() -> None:
    page = rendered(replace(SNAPSHOT, landing=LANDER))
    assert table_of(parsed(page), "landing") == [
        ["shardId-000000000001", "900", "62 KiB", "6", "100", "6.2 KiB", "2 s"]
    ]
    assert "The store takes nothing: full since 90 s: no space left" in page
    assert 'id="landing"' not in rendered(SNAPSHOT)


def test_of_very_many_shards_those_are_shown_that_wait_longest_for_spark() -> None:
    assert SPARKING.spark is not None
    calm, late = SPARKING.spark.shards
    shards = (*(replace(calm, shard_id=f"s-{number}") for number in range(2 * MAX_SHARDS)), late)
    tree = parsed(rendered(replace(SPARKING, spark=replace(SPARKING.spark, queries=(), shards=shards))))
    shown = table_of(tree, "spark")
    assert len(shown) == MAX_SHARDS
    assert shown[0][0] == late.shard_id


def test_a_worker_that_knows_nothing_yet_says_so() -> None:
    text = rendered(replace(FOLLOWER, shards=(), started=False))
    parsed(text)
    for words in ("is starting", "not read yet", "holds no lease", "The leader decides moves", "No child"):
        assert words in text


def test_of_a_very_large_application_only_the_own_leases_are_shown() -> None:
    large = many(MAX_ROWS + 1)
    tree = parsed(rendered(replace(large, shards=large.shards[:3])))
    assert len(table_of(tree, "shards")) == 3


def test_the_part_that_is_renewed_is_the_part_that_is_in_the_page() -> None:
    live = "".join(live_part(SNAPSHOT, ThroughputHistory(), now_s=0.0, every_s=2.0))
    assert live in rendered(SNAPSHOT)
    assert live.startswith('<div id="live" data-every="2.0">')


def test_the_policy_names_what_is_in_the_page_and_the_page_loads_nothing() -> None:
    given_ = assets()
    text = rendered(SNAPSHOT)
    assert f"<style>{given_.style}</style>" in text
    assert f"<script>{given_.script}</script>" in text
    assert re.findall(r"(?:src|href)=\"(?!#|/|data:,\")", text) == []
    assert re.search(r"\sstyle=", text) is None, "the policy forbids it"
    assert "unsafe" not in given_.policy
    assert re.search(r"url\(|@import|https?:", given_.style) is None


def colours(style: str) -> list[dict[str, str]]:
    """The colours of the light and of the dark scheme."""
    found = [
        dict(re.findall(r"--(\w+): (#\w{6});", block))
        for block in re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    ]
    return [found[0], {**found[0], **found[1]}]


def luminance(colour: str) -> float:
    """WCAG 2: relative luminance."""
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("colour", ["text", "faint", "link", "good", "busy", "bad"])
@pytest.mark.parametrize("ground", ["ground", "raised"])
def test_text_stands_out_from_its_ground(scheme: int, colour: str, ground: str) -> None:
    of_scheme = colours(assets().style)[scheme]
    bright, dim = sorted((luminance(of_scheme[colour]), luminance(of_scheme[ground])), reverse=True)
    assert (bright + 0.05) / (dim + 0.05) >= 4.5, "WCAG 2 AA"


def test_lanes_have_a_section_where_there_are_some() -> None:
    tree = parsed(rendered(LANED))
    assert table_of(tree, "lanes") == [
        ["shardId-000000000001", "2 of 8", "lane 3", "00c0ffee", "75 s", "14", "3.0 MiB", "8.0 MiB", "2"],
        ["shardId-000000000002", "0 of 4", "-", "-", "-", "-", "-", "0 B", "0"],
    ]
    children = table_of(tree, "children")
    assert [row[0] for row in children] == ["shardId-000000000001 lane 0", "shardId-000000000001 lane 3"]
    assert "KeyError: 7" in children[1][-1]
    assert 'href="#lanes"' in rendered(LANED)
    assert 'id="lanes"' not in rendered(SNAPSHOT)
    assert 'href="#lanes"' not in rendered(SNAPSHOT)


def test_the_lanes_of_so_many_shards_are_cut_to_those_that_are_held_back_longest() -> None:
    lanes = LANED.shards[0].lanes
    assert lanes is not None
    shards = tuple(
        replace(each, lanes=replace(lanes, held_s=float(number)))
        for number, each in enumerate(many(MAX_SHARDS + 5).shards)
    )
    rows = table_of(parsed(rendered(replace(SNAPSHOT, shards=shards))), "lanes")
    assert len(rows) == MAX_SHARDS
    assert rows[0][0] == f"shardId-{MAX_SHARDS + 4:012}"


def test_records_set_aside_have_a_section_where_there_are_some() -> None:
    first, *others = SNAPSHOT.shards
    aside = replace(first, set_aside={"rejected": 12, "expired": 30}, last_set_aside="no <such> customer")
    some = replace(SNAPSHOT, shards=(aside, *others))
    assert table_of(parsed(rendered(some)), "aside") == [
        [first.key, "expired", "30", "no <such> customer"],
        [first.key, "rejected", "12", "no <such> customer"],
    ]
    assert 'id="aside"' not in rendered(SNAPSHOT)


def test_bugs_that_the_daemon_has_found_in_itself_are_among_the_facts() -> None:
    found = replace(
        SNAPSHOT, violations=2, last_violation="shard-1: <memory>; /state/a.jsonl has the evidence"
    )
    assert "Bugs found (2)" in rendered(found)
    assert "shard-1: &lt;memory&gt;; /state/a.jsonl has the evidence" in rendered(found)
    assert "Bugs found" not in rendered(SNAPSHOT)
