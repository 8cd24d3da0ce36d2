"""Marks and rosters as `status`, `verify` and `expire` find them; and what cannot be obeyed is named."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import msgspec
import pytest

from kcl_landing.keeping.complete import expire_marks, statements_of
from kcl_landing.keeping.read import survey
from kcl_landing.keeping.status import LogStatus, status
from kcl_landing.log import Mark, Marks, Roster, manifest_path, marks_path, roster_path
from kcl_landing.store import LogStore, open_store
from tests.landing import logs
from tests.landing.logs import BEGIN_MS, INFO, SHARD, STREAM, verify
from tests.landing.memory_store import MemoryStore
from tests.landing.test_command import invoke

CHILD, NOBODYS = "shardId-000000000001", "shardId-000000000002"
NOW_MS = BEGIN_MS + 60_000
write = partial(logs.write, marks=True)
DAY_MS = 86_400_000


def state(
    store: LogStore, worker: str = "host-1", *, at_ms: int = NOW_MS, log: str = "id-1", **shards: Mark
) -> str:
    named = {f"{STREAM}/{name.replace('_', '-')}": mark for name, mark in shards.items()}
    store.replace(marks_path(worker), msgspec.json.encode(Marks(log, worker, at_ms, 5_000, named)))
    return marks_path(worker)


def name(*shards: str, log: str = "id-1", **children: tuple[str, ...]) -> Roster:
    parents = dict.fromkeys(shards, ()) | {each.replace("_", "-"): of for each, of in children.items()}
    return Roster(log, STREAM, NOW_MS, 10_000, parents)


def put(store: LogStore, roster: Roster) -> str:
    store.replace(roster_path(roster.stream), msgspec.json.encode(roster))
    return roster_path(roster.stream)


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    write(store, 4)
    write(store, 2, shard=CHILD)
    return store


def said(found: LogStatus) -> dict[str, tuple[int, str]]:
    return {
        each.shard: (each.complete_ms and each.complete_ms - BEGIN_MS, each.worker) for each in found.shards
    }


def test_the_shard_whose_mark_is_oldest_holds_the_horizon(store: MemoryStore) -> None:
    state(store, shardId_000000000000=Mark(3, NOW_MS - 2_000, 1))
    state(store, "host-2", shardId_000000000001=Mark(1, NOW_MS - 30_000, 1))
    found = status(store, INFO)
    assert said(found) == {SHARD: (58_000, "host-1"), CHILD: (30_000, "host-2")}
    assert found.holder is found.shards[1]
    assert found.hosts == {"host-1": NOW_MS, "host-2": NOW_MS}


def test_a_mark_counts_only_when_the_manifest_has_its_number_and_of_several_the_last_one(
    store: MemoryStore,
) -> None:
    state(store, shardId_000000000000=Mark(4, NOW_MS, 1), shardId_000000000001=Mark(1, NOW_MS - 9_000, 1))
    state(store, "host-2", shardId_000000000001=Mark(0, NOW_MS - 8_000, 2))
    found = status(store, INFO)
    assert said(found) == {SHARD: (3_000, ""), CHILD: (52_000, "host-2")}


def test_a_shard_that_nobody_has_holds_at_its_parents_end(store: MemoryStore) -> None:
    put(store, name(SHARD, CHILD, shardId_000000000002=(CHILD,)))
    state(store, shardId_000000000000=Mark(3, NOW_MS, 1), shardId_000000000001=Mark(1, NOW_MS, 1))
    found = status(store, INFO)
    assert said(found)[NOBODYS] == (1_000, "")
    assert found.holder is not None
    assert (found.holder.shard, found.holder.trouble) == (NOBODYS, "nobody has written of it yet")
    put(store, name(SHARD, CHILD, NOBODYS))
    assert said(status(store, INFO))[NOBODYS] == (0, "")
    assert [each.shard for each in status(store, INFO, shard=SHARD).shards] == [SHARD]


def test_a_shard_of_an_older_writer_at_its_tip_holds_nothing(store: MemoryStore) -> None:
    where = manifest_path(STREAM, CHILD)
    manifest = msgspec.json.decode(store.read(where))
    del manifest["marks"]
    store.replace(where, msgspec.json.encode(manifest))
    state(store, shardId_000000000000=Mark(3, NOW_MS, 1))
    assert said(status(store, INFO)) == {SHARD: (60_000, "host-1"), CHILD: (0, "")}
    store.replace(where, msgspec.json.encode({**manifest, "behindMs": 5}))
    found = status(store, INFO)
    assert found.holder is not None
    assert (found.holder.shard, found.holder.complete_ms) == (CHILD, BEGIN_MS + 1_000)


def test_an_ended_shard_holds_only_for_a_child_that_is_not_there(store: MemoryStore) -> None:
    write(store, 3, shard=NOBODYS, children=(CHILD,))
    assert NOBODYS not in [shard for shard, (ms, _) in said(status(store, INFO)).items() if ms]
    write(store, 2, shard="shardId-9", children=("shardId-10",))
    assert said(status(store, INFO))["shardId-9"] == (1_000, "")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"{", "truncated"),
        (b"[]", "Expected"),
        (b"\xff", "invalid"),
        (msgspec.json.encode(Marks("id-1", "host-1", NOW_MS, 5, {}, version=2)), "version 2"),
        (msgspec.json.encode(Marks("id-2", "host-1", NOW_MS, 5, {})), "of the log id-2"),
        (msgspec.json.encode(Marks("id-1", "host-2", NOW_MS, 5, {})), "says that it is _marks/host-2-"),
        (
            b'{"log": "id-1", "worker": "host-1", "atMs": 1, "windowMs": 5, "shards": {"a": [1, -5]}}',
            "Expected",
        ),
    ],
)
def test_marks_that_cannot_be_read_are_named_and_count_for_nothing(
    store: MemoryStore, content: bytes, why: str
) -> None:
    path = marks_path("host-1")
    store.replace(path, content)
    found = status(store, INFO)
    (trouble,) = found.trouble
    assert trouble.startswith(f"{path} cannot be read: ")
    assert why in trouble
    assert found.hosts == {}
    _, problems = verify(store)
    assert problems == [trouble]
    lines: list[str] = []
    stated = statements_of(store, INFO, survey(store, INFO))
    expire_marks(store, stated, lines.append, at_ms=NOW_MS + 100 * DAY_MS, dry_run=False)
    assert (len(lines), path in store.objects) == (1, True)


def test_a_roster_of_another_log_or_stream_is_named(store: MemoryStore) -> None:
    path = put(store, name(NOBODYS, log="id-9"))
    found = status(store, INFO)
    assert len(found.shards) == 2
    assert found.trouble[0].startswith(f"{path} cannot be read: it is of the log id-9")
    store.replace(path, msgspec.json.encode(Roster("id-1", "else", 1, 1, {})))
    assert "says that it is _shards/else.json" in status(store, INFO).trouble[0]


def test_verify_finds_a_mark_that_states_more_than_there_is(store: MemoryStore) -> None:
    path = state(store, shardId_000000000000=Mark(3, NOW_MS, 1), shardId_000000000001=Mark(-1, NOW_MS, 1))
    put(store, name(SHARD, CHILD))
    verdict, problems = verify(store)
    assert (problems, verdict.notes) == ([], [])
    state(
        store,
        shardId_000000000000=Mark(4, NOW_MS, 1),
        shardId_000000000001=Mark(1, NOW_MS + 2_000, 1),
        shardId_x=Mark(0, 1, 1),
    )
    _, problems = verify(store)
    assert problems == [
        f"{STREAM}/{SHARD} ({path}): states segment 4, and the log ends with 3",
        f"{STREAM}/{CHILD} ({path}): is complete until later than it was written",
        f"{STREAM}/shardId-x ({path}): states segment 0, and the log ends with -1",
    ]


def test_marks_that_are_written_while_the_log_is_verified_are_no_damage(store: MemoryStore) -> None:
    state(store, shardId_000000000000=Mark(3, NOW_MS, 1))
    listing, listed = store.listing, list[str]()

    def later(folder: str, *, after: str = "") -> object:
        found = list(listing(folder, after=after))
        listed.append(folder)
        if folder == "":
            state(store, shardId_000000000000=Mark(9, NOW_MS, 1))
        return iter(found)

    store.listing = later  # type: ignore[assignment, method-assign]
    assert verify(store)[1] == []
    assert "" in listed


def test_marks_of_a_host_that_has_not_written_for_a_week_go(store: MemoryStore) -> None:
    old = state(store, "old", at_ms=NOW_MS - 8 * DAY_MS)
    new = state(store, "new", at_ms=NOW_MS - 6 * DAY_MS)
    roster = put(store, name(SHARD))
    for dry_run in (True, False):
        lines: list[str] = []
        stated = statements_of(store, INFO, survey(store, INFO))
        expire_marks(store, stated, lines.append, at_ms=NOW_MS, dry_run=dry_run)
        assert len(lines) == 1
        assert old in lines[0]
        assert (old in store.objects, new in store.objects, roster in store.objects) == (dry_run, True, True)


def test_the_command_shows_who_holds_and_expires_old_marks(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    store = open_store(str(folder))
    write(store, 4)
    state(store, at_ms=BEGIN_MS + 8_000, shardId_000000000000=Mark(3, BEGIN_MS + 7_000, 1))
    lines = invoke("status", folder).output.splitlines()
    assert lines[1].startswith("complete until ")
    assert f"{STREAM}/{SHARD} holds it; the mark of host-1 is " in lines[1]
    assert "COMPLETE" in lines[2]
    assert f'"holder": "{STREAM}/{SHARD}"' in invoke("status", folder, "--json").output
    assert invoke("verify", folder).output.endswith(": clean\n")
    result = invoke("expire", folder, "--older-than", "1d", "--dry-run")
    assert f"{marks_path('host-1')} would go: host-1 wrote it a week ago" in result.output
    assert invoke("expire", folder, "--older-than", "1d").exit_code == 0
    assert not (folder / marks_path("host-1")).exists()
    assert invoke("compact", folder).exit_code == 0
