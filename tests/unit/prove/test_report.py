"""The files of a run can be attached to an issue: valid, complete, and without a secret."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import html5lib
import orjson
import pytest

from kcl_prove.inventory import Item
from kcl_prove.parts import SceneResult, Usage
from kcl_prove.removal import NotRemoved
from kcl_prove.report import Account, Environment, document, html, masked, summary, write
from kcl_prove.runner import Played
from tests.unit.prove.accounts import RUN_ID, SMALL

WHERE = Environment("0.1.0", "AWS", "eu-west-1", "2026-11-23T12:00:00Z", "small", SMALL)
ACCOUNT = Account(Usage(shard_hours=10), Usage(shard_hours=4, put_units=2_000_000))
HOSTILE = "</td><script>alert('1')</script>&\x00\x1b[31m"
RIGHT = SceneResult(
    "polling",
    passed=True,
    seconds=12.3,
    written=1200,
    delivered=1200,
    repeated=3,
    gap_ms=1234.5,
    latency_p50_ms=100.0,
    latency_p99_ms=2500.0,
    requests={"kinesis:GetRecords": 40, "dynamodb:UpdateItem": 60},
    notes=("all went well",),
)
LEFT_OUT = SceneResult("java", passed=True, left_out="without --java")
WRONG = replace(RIGHT, name="kill-leader", passed=False, lost=2, delivered=1198, notes=(HOSTILE,))


def found(*results: SceneResult, ended_by: str = "", left: tuple[NotRemoved, ...] = ()) -> dict[str, Any]:
    return document(RUN_ID, WHERE, Played([*results], 25.0, ended_by), ACCOUNT, left)


def parsed(text: str) -> Element:
    tree: Element = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(text)
    return tree


def rows(tree: Element, number: int) -> list[list[str]]:
    table = list(tree.iter("table"))[number]
    return [["".join(cell.itertext()) for cell in row] for row in table.iterfind("tbody/tr")]


def test_the_summary_ends_as_the_demo_does() -> None:
    lines = list(summary(found(RIGHT, LEFT_OUT)))
    assert lines == [
        "played          1 of 2 scenes in 25 s",
        "written         1,200 records",
        "delivered       1,200",
        "latency         p50 100 ms, p99 2,500 ms (polling) to p50 100 ms, p99 2,500 ms (polling)",
        "longest gap     1,234 ms (polling)",
        "requests        100: dynamodb:UpdateItem 60, kinesis:GetRecords 40 ...",
        "cost            0.09 dollars by list prices (us-east-1, November 2025), estimated 0.15 before it began",
        "repeated        3",
        "out of order    0",
        "before parents  0",
        "result          right",
        "lost 0",
    ]


def test_a_loss_is_wrong_and_counted() -> None:
    lines = list(summary(found(RIGHT, WRONG)))
    assert lines[-2:] == ["result          WRONG", "lost 2"]


STREAM_LEFT = NotRemoved(Item("stream", f"{RUN_ID}-a"), "denied", "aws ...")


@pytest.mark.parametrize(
    ("given", "result"),
    [
        (found(RIGHT), "right"),
        (found(LEFT_OUT), "nothing was played"),
        (found(RIGHT, left=(STREAM_LEFT,)), "right, but not everything was removed"),
        (found(RIGHT, replace(WRONG, lost=0), ended_by="the cap"), "not finished"),
        (found(WRONG, RIGHT, ended_by="the cap"), "wrong"),
    ],
)
def test_the_verdict(given: dict[str, Any], result: str) -> None:
    assert given["result"] == result


def test_the_page_is_valid_loads_nothing_and_shows_text_as_text() -> None:
    text = "".join(html(found(RIGHT, WRONG, LEFT_OUT, ended_by=HOSTILE, left=(STREAM_LEFT,))))
    tree = parsed(text)
    tags = {str(each.tag) for each in tree.iter()}
    assert not tags & {"script", "link", "img", "iframe"}
    assert not {
        name for each in tree.iter() for name in each.attrib if name in {"src", "href"} or name[:2] == "on"
    }
    assert "url(" not in text
    for table in tree.iter("table"):
        width = len(list(table.iterfind("thead/tr/th")))
        assert {len(row) for row in table.iterfind("tbody/tr")} == {width}
    scenes = rows(tree, 1)
    assert scenes[0][:6] == ["polling", "right", "12", "1,200", "1,200", "0"]
    assert scenes[1][1] == "wrong"
    assert scenes[1][-1] == "</td><script>alert('1')</script>&??[31m"
    assert scenes[2][1:3] + scenes[2][-1:] == ["left out", "", "without --java"]
    assert rows(tree, 2) == [["dynamodb:UpdateItem", "120"], ["kinesis:GetRecords", "80"]]
    assert rows(tree, 3)[-1] == ["total", "", "0.0880"]


def test_the_files_hold_the_same_and_are_named_after_the_run(tmp_path: Path) -> None:
    page, data = write(tmp_path / "new" / "folder", found(RIGHT, LEFT_OUT))
    assert (page.name, data.name) == (f"{RUN_ID}.html", f"{RUN_ID}.json")
    parsed(page.read_text("utf-8"))
    read = orjson.loads(data.read_bytes())
    assert read["environment"]["endpoints"] == "AWS"
    assert read["environment"]["size"]["records"] == SMALL.records
    assert read["total"] == {
        "written": 1200, "delivered": 1200, "lost": 0, "repeated": 3, "out_of_order": 0, "before_parents": 0
    }  # fmt: skip
    assert read["scenes"][1]["left_out"] == "without --java"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("User: arn:aws:iam::123456789012:user/me is not", "User: (ARN) is not"),
        ("arn:aws-cn:kinesis:cn-north-1:123456789012:stream/x", "(ARN)"),
        ("account 123456789012 is", "account (account) is"),
        ("split shardId-000000000003", "split shardId-000000000003"),
        ("key AKIAIOSFODNN7EXAMPLE", "key (key)"),
        ("at https://vpce-1.kinesis.eu-west-1.vpce.amazonaws.com/x", "at https://(host)/x"),
        ("at http://127.0.0.1:4567/", "at http://127.0.0.1:4567/"),
        ("on box-7.corp.example and box-7", "on (host) and (host)"),
        ("/home/me/.aws/credentials", "~/.aws/credentials"),
    ],
)
def test_nothing_tells_of_the_account_or_the_machine(text: str, shown: str) -> None:
    assert masked(text, host="box-7.corp.example", home="/home/me") == shown


def test_a_home_that_is_the_root_hides_no_slashes() -> None:
    assert masked("/etc/x//y", host="", home="/") == "/etc/x//y"


def test_account_numbers_in_texts_of_scenes_and_services_are_masked() -> None:
    secret = "arn:aws:kinesis:eu-west-1:123456789012:stream/x"
    notes = replace(WRONG, notes=(secret,))
    left = NotRemoved(Item("consumer", secret), f"no {secret}", f"aws {secret}")
    given = found(notes, replace(LEFT_OUT, left_out=secret), ended_by=secret, left=(left,))
    assert b"123456789012" not in orjson.dumps(given) + "".join(html(given)).encode()
