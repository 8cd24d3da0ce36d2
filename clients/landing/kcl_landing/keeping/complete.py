"""Until when all shards are complete, by the marks and rosters of all hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kcl_landing.keeping.chain import Problem
from kcl_landing.keeping.names import LogObjects, ShardKey
from kcl_landing.keeping.read import Unreadable, decoded, side_by_side
from kcl_landing.log import MARKS, LogInfo, Marks, Roster, marks_path, roster_path
from kcl_landing.store import LogStore, NoObject

_FORGOTTEN_MS: Final = 7 * 24 * 3_600_000
_CLOCK_MS: Final = 1_000


@dataclass(slots=True)
class Statements:
    """`trouble`: what readers ignore, and why."""

    hosts: list[Marks] = field(default_factory=list[Marks])
    rosters: list[Roster] = field(default_factory=list[Roster])
    trouble: list[Unreadable] = field(default_factory=list[Unreadable])


def statements_of(store: LogStore, info: LogInfo, found: LogObjects) -> Statements:

    def read(path: str) -> Marks | Roster | Unreadable | None:
        said: Marks | Roster
        try:
            said = (
                decoded(store, path, Marks) if path.startswith(f"{MARKS}/") else decoded(store, path, Roster)
            )
        except NoObject:
            return None
        except Unreadable as error:
            return error
        of = marks_path(said.worker) if isinstance(said, Marks) else roster_path(said.stream)
        if said.log != info.log_id:
            return Unreadable(path, f"it is of the log {said.log}, and this is {info.log_id}")
        return said if of == path else Unreadable(path, f"it says that it is {of}")

    stated = Statements()
    for each in side_by_side(read, sorted(found.statements)):
        if isinstance(each, Marks):
            stated.hosts.append(each)
        elif isinstance(each, Roster):
            stated.rosters.append(each)
        elif each is not None:
            stated.trouble.append(each)
    return stated


def wrong_marks(
    hosts: Iterable[Marks], ends: Mapping[ShardKey, int], is_wanted: Callable[[ShardKey], bool]
) -> Iterator[Problem]:
    """`ends`: last segments, found after the marks were read."""
    for host in hosts:
        path = marks_path(host.worker)
        for name, mark in host.shards.items():
            stream, _, shard = name.partition("/")
            key = stream, shard
            if is_wanted(key) and mark.number > (end := ends.get(key, -1)):
                yield Problem(f"states segment {mark.number}, and the log ends with {end}", key, None, path)
            if is_wanted(key) and mark.complete_ms > host.at_ms + _CLOCK_MS:
                yield Problem("is complete until later than it was written", key, None, path)


def expire_marks(
    store: LogStore, stated: Statements, tell: Callable[[str], object], *, at_ms: int, dry_run: bool
) -> None:
    """Of hosts that were silent for a week."""
    for each in stated.trouble:
        tell(f"{each.path} stays: {each}")
    gone = [each for each in stated.hosts if each.at_ms < at_ms - _FORGOTTEN_MS]
    for host in gone:
        tell(
            f"{marks_path(host.worker)} {'would go' if dry_run else 'goes'}: {host.worker} wrote it a week ago"
        )
    if gone and not dry_run:
        store.remove([marks_path(each.worker) for each in gone])


@dataclass(slots=True)
class Known:
    number: int = -1
    arrived_ms: int = 0
    children: Sequence[str] | None = None
    has_marks: bool = True
    is_behind: bool = False


def complete_ms(
    shards: Mapping[ShardKey, Known], stated: Statements
) -> dict[ShardKey, tuple[int, Marks | None]]:
    """Until when each shard is complete of which more may come, and whose mark says so.

    Readers wait for the least. As in the data source, no shard is complete before its parent's end.
    """
    parents: dict[ShardKey, set[str]] = {}
    for roster in stated.rosters:
        for shard, before in roster.shards.items():
            parents.setdefault((roster.stream, shard), set()).update(before)
    for (stream, shard), known in shards.items():
        for child in known.children or ():
            parents.setdefault((stream, child), set()).add(shard)
    found: dict[ShardKey, tuple[int, Marks | None]] = {}
    for key, known in shards.items():
        stream, shard = key
        is_open = known.children is None or any((stream, child) not in shards for child in known.children)
        if not is_open or not (known.has_marks or known.is_behind):
            continue
        ends = [shards[stream, each].arrived_ms for each in parents.get(key, ()) if (stream, each) in shards]
        found[key] = max([known.arrived_ms, *ends]), None
        for host in stated.hosts:
            mark = host.shards.get(f"{stream}/{shard}")
            if mark is not None and known.number >= mark.number and mark.complete_ms >= found[key][0]:
                found[key] = mark.complete_ms, host
    return found
