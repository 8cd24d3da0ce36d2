"""The texts of a worker's report and of what the leader found."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from math import isfinite
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, MsgspecError, Struct

from kcl_daemon.capacity.figures import Bound, Capacity, ShardLoad, WorkerLoad
from kcl_daemon.leases.lease import LeaseKey, WorkerId

MOST_BYTES: Final = 4096
VERSION: Final = 1
_MOST: Final = 10**18
_SHARD: Final = re.compile(r"(.*)shardId-([0-9]{12})", re.ASCII | re.DOTALL)
_UNDERSCORE: Final = re.compile(r"_([a-z])")
_BOUNDS: Final = {each.value: each for each in Bound}
_CAPITAL: Final = re.compile(r"([A-Z])")

_Count = Annotated[int, Meta(ge=0, le=2**53)]
_Figure = Annotated[float, Meta(ge=0, le=1e15)]
_Share = Annotated[float, Meta(ge=0, le=1)]
_ENCODER: Final = msgspec.json.Encoder()


class _Row(Struct, array_like=True):
    """`shard`: a whole lease key, or 3 for `shardId-000000000003` behind a prefix, which stands at `prefix` in the list."""

    prefix: _Count
    shard: Annotated[int, Meta(ge=0, lt=10**12)] | str
    behind_s: _Figure | None
    speed: _Figure | None
    in_bytes: _Figure
    out_bytes: _Figure
    busy: _Share
    bound: str


class _Report(Struct, array_like=True):
    version: int
    at_ms: _Count
    cpu: _Share | None
    left_out: _Count
    quiet_s: _Figure
    prefixes: list[str]
    rows: list[_Row]


_DECODER: Final = msgspec.json.Decoder(_Report)


def load_text(load: WorkerLoad) -> str:
    """As many shards as fit into `MOST_BYTES`: those furthest behind first."""
    prefixes: dict[str, int] = {}
    report = _Report(VERSION, max(load.at_ms, 0), _share(load.cpu), 0, _figure(load.quiet_s), [], [])
    room = MOST_BYTES - len(_ENCODER.encode(report)) - 8  # more digits of `left_out`
    for shard in sorted(load.shards, key=lambda each: (-(each.behind_s or 0), -each.out_bytes)):
        row = _row(shard, prefixes)
        new = list(prefixes)[len(report.prefixes) :]
        room -= len(_ENCODER.encode(row)) + sum(len(_ENCODER.encode(each)) + 1 for each in new) + 1
        if room < 0:
            break
        report.prefixes.extend(new)
        report.rows.append(row)
    report.left_out = load.left_out + len(load.shards) - len(report.rows)
    return _ENCODER.encode(report).decode()


def _row(shard: ShardLoad, prefixes: dict[str, int]) -> _Row:
    match = _SHARD.fullmatch(shard.key)
    prefix, name = (match[1], int(match[2])) if match else ("", shard.key)
    return _Row(
        prefixes.setdefault(prefix, len(prefixes)),
        name,
        None if shard.behind_s is None else _figure(shard.behind_s),
        None if shard.speed is None else _figure(shard.speed, 3),
        _figure(shard.in_bytes, 0),
        _figure(shard.out_bytes, 0),
        _share(shard.busy) or 0.0,
        shard.bound.value,
    )


def _figure(value: float, digits: int = 1) -> float:
    rounded = round(min(max(value, 0.0), 1e15), digits) if isfinite(value) else 0.0
    return int(rounded) if rounded == int(rounded) else rounded


def _share(value: float | None) -> float | None:
    return None if value is None else min(_figure(value, 2), 1)


def load_from(text: str, worker_id: WorkerId) -> WorkerLoad | None:
    """None for malformed text and for a version that is not known here."""
    try:
        report = _DECODER.decode(text)
        shards = tuple(_loads(report.rows, report.prefixes))
    except (MsgspecError, UnicodeError, IndexError, RecursionError):
        return None
    if report.version != VERSION:
        return None
    return WorkerLoad(worker_id, report.at_ms, report.cpu, shards, report.left_out, report.quiet_s)


def _loads(rows: Iterable[_Row], prefixes: list[str]) -> Iterable[ShardLoad]:
    for row in rows:
        prefix = prefixes[row.prefix]
        key = f"{prefix}shardId-{row.shard:012d}" if isinstance(row.shard, int) else row.shard
        bound = _BOUNDS.get(row.bound, Bound.UNKNOWN)  # a newer version may have more
        yield ShardLoad(LeaseKey(key), row.behind_s, row.speed, row.in_bytes, row.out_bytes, row.busy, bound)


def capacity_text(capacity: Capacity) -> str:
    """JSON with the names of `Capacity` in camelCase; programs may rely on them."""
    named = _renamed(
        msgspec.to_builtins(capacity), lambda name: _UNDERSCORE.sub(lambda found: found[1].upper(), name)
    )
    return msgspec.json.encode({"format": VERSION, **named}).decode()


def capacity_from(text: str) -> Capacity | None:
    """None as for `load_from`."""
    try:
        named = msgspec.json.decode(text, type=dict[str, Any])
        if named.pop("format", None) != VERSION:
            return None
        if not _are_figures(named):
            return None
        plain = _renamed(named, lambda name: _CAPITAL.sub(lambda found: f"_{found[1].lower()}", name))
        return msgspec.convert(plain, Capacity)
    except (MsgspecError, UnicodeError, RecursionError):
        return None


def _are_figures(value: Any) -> bool:
    if isinstance(value, dict | list):
        return all(map(_are_figures, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, int | float) or 0 <= value <= _MOST


def _renamed(value: Any, rename: Callable[[str], str]) -> Any:
    if isinstance(value, dict):
        return {rename(name): _renamed(each, rename) for name, each in value.items()}
    return [_renamed(each, rename) for each in value] if isinstance(value, list | tuple) else value
