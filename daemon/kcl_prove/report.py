"""Lines for the terminal, and one JSON and one HTML file that can be attached to an issue."""

from __future__ import annotations

import platform
import re
import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any, Final

import orjson

from kcl_prove.parts import SceneResult, Size, Usage
from kcl_prove.prices import PRICES_OF, CostItem, cost, cost_items
from kcl_prove.removal import NotRemoved
from kcl_prove.runner import Played

FORMAT: Final = 1
_SECRETS: Final = (
    (re.compile(r"arn:aws[^\s\"',)]*"), "(ARN)"),
    (re.compile(r"\b(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{12,}\b"), "(key)"),
    (re.compile(r"(?<!shardId-)(?<![\d.])\d{12}(?![\d.])"), "(account)"),
    (re.compile(r"(?<=://)(?!127\.0\.0\.1|localhost)[^\s/\"']+"), "(host)"),
    (re.compile(r"[\x00-\x08\x0b-\x1f\x7f]"), "?"),
)
_SHORTEST_NAME: Final = 4
_HEADINGS: Final = (
    *("Scene", "Result", "Seconds", "Written", "Delivered", "Lost", "Repeated", "Out of order"),
    *("Before parents", "Longest gap", "Latency p50", "Latency p99", "Notes"),
)
_COUNTS: Final = ("written", "delivered", "lost", "repeated", "out_of_order", "before_parents")
_STYLE: Final = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:100rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a;background:#fff}"
    "table{border-collapse:collapse;margin:1rem 0;width:100%;font-variant-numeric:tabular-nums}"
    "caption{text-align:left;font-weight:600;padding:.4rem 0}th,td{text-align:left;vertical-align:top;"
    "padding:.3rem .8rem .3rem 0;border-bottom:1px solid #ccc}tbody>tr>*:not(:last-child){white-space:nowrap}.right{color:#176b2c}.wrong{color:#a4161a}"
    "@media(prefers-color-scheme:dark){body{color:#e6e6e6;background:#161616}th,td{border-color:#444}"
    ".right{color:#6fd08c}.wrong{color:#ff8a8a}}"
)


@dataclass(frozen=True, slots=True)
class Environment:
    """`endpoints`: `AWS`, `local`, or `other` where AWS' own are not used."""

    daemon: str
    endpoints: str
    region: str
    begun: str
    size_name: str
    size: Size
    java: bool = False
    fis: bool = False
    python: str = platform.python_version()
    platform: str = f"{platform.system()} {platform.release()} {platform.machine()}"


@dataclass(frozen=True, slots=True)
class Account:
    """What AWS would charge; `planned`: of the estimate."""

    planned: Usage
    used: Usage


def document(
    run_id: str, where: Environment, played: Played, account: Account, left: Sequence[NotRemoved]
) -> dict[str, Any]:
    results, shown = played.results, played.shown
    return {
        "format": FORMAT,
        "run": run_id,
        "result": verdict(played, left),
        "ended_by": masked(played.ended_by),
        "seconds": round(played.seconds, 1),
        "environment": asdict(where),
        "total": {name: sum(getattr(each, name) for each in shown) for name in _COUNTS},
        "requests": dict(requests_of(shown)),
        "scenes": list(map(_scene, results)),
        "cost": {
            "prices": PRICES_OF,
            "charged": where.endpoints == "AWS",
            "estimate_dollars": round(cost(account.planned), 4),
            "dollars": round(cost(account.used), 4),
            "items": [asdict(item) for item in cost_items(account.used)],
        },
        "not_removed": [
            {"kind": each.item.kind, "name": masked(each.item.name), "why": masked(each.why)} for each in left
        ],
    }


def verdict(played: Played, left: Sequence[NotRemoved]) -> str:
    if played.ended_by and all(each.passed for each in played.shown[:-1]):
        return "not finished"
    if not played.shown:
        return "nothing was played"
    if not played.is_right:
        return "wrong"
    return "right, but not everything was removed" if left else "right"


def requests_of(results: Iterable[SceneResult]) -> Counter[str]:
    found: Counter[str] = Counter()
    for each in results:
        found.update(each.requests)
    return Counter(dict(found.most_common()))


def masked(text: str, host: str | None = None, home: str | None = None) -> str:
    """Without what tells of the account or of `host` and `home`, by default this machine's."""
    name = socket.gethostname() if host is None else host
    for pattern, mask in _SECRETS:
        text = pattern.sub(mask, text)
    folder = str(Path.home()) if home is None else home
    text = re.sub(rf"{re.escape(folder)}(?=/)", "~", text) if folder != "/" else text
    for each in sorted({name, name.partition(".")[0]}, key=len, reverse=True):
        if len(each) >= _SHORTEST_NAME:
            text = re.sub(rf"(?<![\w.-]){re.escape(each)}(?![\w-])", "(host)", text)
    return text


def _scene(result: SceneResult) -> dict[str, Any]:
    return {**asdict(result), "notes": list(map(masked, result.notes)), "left_out": masked(result.left_out)}


def write(folder: Path, found: Mapping[str, Any]) -> tuple[Path, Path]:
    """The HTML and the JSON file."""
    folder.mkdir(parents=True, exist_ok=True)
    page, data = (folder / f"{found['run']}.{suffix}" for suffix in ("html", "json"))
    data.write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    page.write_text("".join(html(found)), "utf-8")
    return page, data


def summary(found: Mapping[str, Any]) -> Iterator[str]:
    total, money, scenes = found["total"], found["cost"], found["scenes"]
    played = [each for each in scenes if not each["left_out"]]
    yield f"played          {len(played)} of {len(scenes)} scenes in {found['seconds']:,.0f} s"
    yield f"written         {total['written']:,} records"
    yield f"delivered       {total['delivered']:,}"
    yield f"latency         {_slowest(played)}"
    yield f"longest gap     {_longest_gap(played)}"
    yield f"requests        {_requests(found['requests'])}"
    yield f"cost            {_cost(money)}"
    yield f"repeated        {total['repeated']:,}"
    yield f"out of order    {total['out_of_order']:,}"
    yield f"before parents  {total['before_parents']:,}"
    if found["ended_by"]:
        yield f"ended early     {found['ended_by']}"
    result = found["result"]
    yield f"result          {result if result.startswith('right') else result.upper()}"
    yield f"lost {total['lost']}"


def _slowest(played: Sequence[Mapping[str, Any]]) -> str:
    timed = [each for each in played if each["latency_p99_ms"] is not None]
    if not timed:
        return "not measured"
    best, worst = (choose(timed, key=lambda each: each["latency_p99_ms"]) for choose in (min, max))
    texts = [
        f"p50 {_ms(each['latency_p50_ms'])}, p99 {_ms(each['latency_p99_ms'])}" for each in (best, worst)
    ]
    return f"{texts[0]} ({best['name']}) to {texts[1]} ({worst['name']})"


def _longest_gap(played: Sequence[Mapping[str, Any]]) -> str:
    gaps = [each for each in played if each["gap_ms"] is not None]
    if not gaps:
        return "not measured"
    worst = max(gaps, key=lambda each: each["gap_ms"])
    return f"{_ms(worst['gap_ms'])} ({worst['name']})"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f} ms"


def _requests(requests: Mapping[str, int]) -> str:
    most = ", ".join(f"{name} {count:,}" for name, count in list(requests.items())[:4])
    return f"{sum(requests.values()):,}" + (f": {most} ..." if most else "")


def _cost(money: Mapping[str, Any]) -> str:
    used, planned = f"{money['dollars']:.2f} dollars", f"{money['estimate_dollars']:.2f} before it began"
    if money["charged"]:
        return f"{used} by list prices ({money['prices']}), estimated {planned}"
    return f"nothing; in AWS {used} by list prices, estimated {planned}"


def html(found: Mapping[str, Any]) -> Iterator[str]:
    where, result = found["environment"], found["result"]
    kind = "right" if result.startswith("right") else "wrong"
    yield f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(found["run"])}: {escape(result)}</title>'
    yield '<meta name="viewport" content="width=device-width,initial-scale=1">'
    yield f"<style>{_STYLE}</style></head>\n<body><h1>kcl-daemon prove</h1>\n"
    lost = f"{found['total']['lost']:,}"
    yield f'<p><strong class="{kind}">{escape(result)}: lost {lost}</strong></p>\n'
    yield f"<p>{escape(found['ended_by'])}</p>\n" if found["ended_by"] else ""
    yield from _table("Run", ("What", "Value"), _facts(found, where))
    yield from _table("Scenes", _HEADINGS, map(_row, found["scenes"]))
    requests = ((name, f"{count:,}") for name, count in found["requests"].items())
    yield from _table("Requests of the daemons", ("Operation", "Number"), requests)
    items = [CostItem(**each) for each in found["cost"]["items"]]
    rows = [(each.unit, f"{each.amount:,.4g}", f"{each.dollars:.4f}") for each in items]
    used = "total", "", f"{found['cost']['dollars']:.4f}"
    yield from _table(f"Cost: {_cost(found['cost'])}", ("Item", "Amount", "Dollars"), [*rows, used])
    if found["not_removed"]:
        left = ((each["name"], each["kind"], each["why"]) for each in found["not_removed"])
        yield from _table("Not removed", ("Name", "Kind", "Why"), left)
    yield "</body></html>\n"


def _facts(found: Mapping[str, Any], where: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    size = where["size"]
    yield "run", found["run"]
    yield "begun", where["begun"]
    yield "seconds", f"{found['seconds']:,.0f}"
    yield "kcl-daemon", where["daemon"]
    yield "Python", f"{where['python']} on {where['platform']}"
    yield "endpoints", f"{where['endpoints']}, {where['region']}"
    amount = f"{size['records']:,} records in {size['seconds']:g} s to {size['shards']} shards"
    yield "size", f"{where['size_name']}: {amount}, {size['workers']} workers"
    yield "Java workers", "yes" if where["java"] else "no"
    yield "FIS experiments", "yes" if where["fis"] else "no"


def _row(scene: Mapping[str, Any]) -> tuple[str, ...]:
    if scene["left_out"]:
        return (scene["name"], "left out", *[""] * (len(_HEADINGS) - 3), scene["left_out"])
    counts = (f"{scene[name]:,}" for name in _COUNTS)
    times = (_ms(scene[name]) for name in ("gap_ms", "latency_p50_ms", "latency_p99_ms"))
    result = "right" if scene["passed"] else "wrong"
    return (scene["name"], result, f"{scene['seconds']:.0f}", *counts, *times, "; ".join(scene["notes"]))


def _table(caption: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"<table><caption>{escape(caption)}</caption>\n<thead><tr>"
    yield "".join(f'<th scope="col">{escape(each)}</th>' for each in headings)
    yield "</tr></thead>\n<tbody>"
    for first, *others in rows:
        cells = "".join(f"<td>{escape(each)}</td>" for each in others)
        yield f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>\n'
    yield "</tbody></table>\n"
