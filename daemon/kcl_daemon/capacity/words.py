from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kcl_daemon.capacity.figures import AT_TIP_S, Bound, Capacity, StreamCapacity
from kcl_daemon.capacity.picture import HELD, Picture, SeenShard
from kcl_daemon.text import about, counted, short_shards

_DAY_S: Final = 86_400
_EVEN: Final = 0.98
_ORDINALS: Final = (
    *(
        "zeroth",
        "first",
        "second",
        "third",
        "fourth",
        "fifth",
        "sixth",
        "seventh",
        "eighth",
        "ninth",
        "tenth",
    ),
    *(
        "eleventh",
        "twelfth",
        "thirteenth",
        "fourteenth",
        "fifteenth",
        "sixteenth",
        "seventeenth",
        "eighteenth",
    ),
)
_SUFFIXES: Final = {1: "st", 2: "nd", 3: "rd"}

_WHY: Final = {
    Bound.NOTHING: "{shards}: nothing holds back, and it is not done yet",
    Bound.CHILD: "the child of {shards} works all the time, and its host has CPU left",
    Bound.READ_QUOTA: "{shards}: Kinesis gives no more than 2 MiB a second of a shard",
    Bound.HOT_KEY: "one partition key of {shards} holds back the others",
    Bound.HOST_CPU: "the CPU of the host of {shards} is used up",
    Bound.MEMORY: "{shards}: reading waits for memory that other shards hold",
    Bound.PAUSE: "paused: {shards}",
    Bound.LIMIT: "slowed down by a limit: {shards}",
    Bound.DOWNSTREAM: "the child of {shards} has asked for a pause, or its letters cannot be stored",
    Bound.FAILING: "the children of {shards} fail",
    Bound.HANGING: "the child of {shards} has worked on one action for too long",
    Bound.REFUSED: "AWS refuses reads of {shards}, or does not answer",
    Bound.SHARDS: "{shards}: more shards are needed",
    Bound.UNKNOWN: "it is not known what holds back {shards}",
}


def clock(at_ms: float) -> str:
    minutes = int(at_ms // 60_000) % (24 * 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def done(now_ms: int, drains_s: float) -> str:
    return f"done at {clock(now_ms + drains_s * 1000)}" if drains_s < _DAY_S else f"done in {about(drains_s)}"


def nth(number: int) -> str:
    if number < len(_ORDINALS):
        name = _ORDINALS[number]
    else:
        ending = "th" if number // 10 % 10 == 1 else _SUFFIXES.get(number % 10, "th")
        name = f"{number}{ending}"
    return f"{'an' if name.startswith(('e', '8')) else 'a'} {name}"


def why_of(bound: Bound, shards: Sequence[SeenShard]) -> str:
    return _WHY[bound].format(shards=short_shards([_name(each) for each in shards]))


def _name(shard: SeenShard) -> str:
    return shard.load.key.rpartition(":")[2]


def unknown(picture: Picture) -> str:
    state = picture.state
    found = []
    if state.silent:
        found.append(
            f"{counted(state.silent, 'worker')} of {state.live} {'tells' if state.silent == 1 else 'tell'} nothing: Java, or an older version"
        )
    elif picture.untold:
        found.append(f"no worker tells of {counted(picture.untold, 'shard')}: not read, or taken just now")
    without_lag = [each for each in picture.shards if each.load.behind_s is None]
    by_bound = [(bound, [each for each in without_lag if each.load.bound is bound]) for bound in HELD]
    found += [why_of(bound, held) for bound, held in by_bound if held]
    if young := [each for each in without_lag if each.load.bound not in HELD]:
        found.append(f"{short_shards([_name(each) for each in young])}: nothing was finished yet")
    blind = sum(load.cpu is None for load in state.loads)
    if blind:
        found.append(f"the CPU of {counted(blind, 'worker')} is not measured")
    return "; ".join(found)


def sentence(found: Capacity, enough: int, picture: Picture) -> str:
    whole = found.whole
    if not whole.shards:
        return "there are no shards to read"
    if whole.behind_s is None:
        return f"it is not known how far behind: {found.unknown or 'no worker has told of a shard yet'}"
    if whole.behind_s <= found.targets.level_s:
        known = "" if picture.has_all_lags else "what is known is "
        parts = [known + _kept_up(whole.behind_s, found.targets.level_s), _workers(found, enough)]
    else:
        parts = [_late(found, whole.behind_s), *_others(whole), _more(found)]
    return "; ".join([*parts, found.unknown] if found.unknown else parts)


def _kept_up(behind_s: float, level_s: float) -> str:
    if behind_s < AT_TIP_S:
        return "at the tip"
    return f"{about(behind_s)} behind, within the service level of {about(level_s)}"


def _workers(found: Capacity, enough: int) -> str:
    workers = counted(found.workers, "worker")
    if not found.wanted:
        return f"{workers}, none is needed: {found.reason}"
    if found.wanted > found.workers:
        return f"{workers}, {found.wanted} are wanted: {found.reason}"
    if found.unknown:
        return workers
    if enough < found.workers:
        return f"{workers}, {enough} would be enough"
    return f"{workers} {'is' if found.workers == 1 else 'are'} enough"


def _late(found: Capacity, behind_s: float) -> str:
    whole = found.whole
    text = f"{about(behind_s)} behind"
    if whole.hot:
        names = short_shards([key.rpartition(":")[2] for key in whole.hot])
        text = f"{names} {'is' if len(whole.hot) == 1 else 'are'} {text}"
    if whole.binds in HELD and whole.drains_s is None:
        return f"{text}; {whole.why}"
    if whole.drains_s is not None:
        return f"{text}, draining at {_speed(whole.speed or 0)} x, {done(found.at_ms, whole.drains_s)}"
    if whole.speed is None:
        return f"{text}; it is not known how fast it goes on"
    if whole.speed < _EVEN:
        return f"{text} and falling further behind at {_speed(whole.speed)} x; it will not catch up like this"
    return f"{text}; it keeps pace, but does not catch up"


def _others(whole: StreamCapacity) -> list[str]:
    others = whole.shards - len(whole.hot)
    keep_up = "the other one keeps up" if others == 1 else f"the other {others} keep up"
    return [keep_up] if whole.hot else []


def _speed(speed: float) -> str:
    return f"{speed:.1f}" if abs(speed - 1) >= 0.1 else f"{speed:.2f}"


def _more(found: Capacity) -> str:
    whole, now_s = found.whole, found.whole.drains_s
    helping = {
        each.workers: each.drains_s
        for each in found.alternatives
        if each.workers > found.workers and each.drains_s and (now_s is None or each.drains_s < 0.9 * now_s)
    }
    if helping and whole.binds not in HELD:
        workers = found.wanted if found.wanted in helping else min(helping)
        verb = "makes it" if now_s is not None else "would do it in"
        last = nth(whole.shards + 1)
        return f"{nth(workers)} worker {verb} {about(helping[workers])}; {last} nothing, there {_are(whole.shards)}"
    if found.unknown or whole.binds is Bound.UNKNOWN:
        return f"{counted(found.workers, 'worker')}, {found.wanted} wanted: {found.reason}"
    return "more workers do not help" if whole.binds in HELD else f"more workers do not help: {whole.why}"


def _are(shards: int) -> str:
    return f"{'is' if shards == 1 else 'are'} {counted(shards, 'shard')}"
