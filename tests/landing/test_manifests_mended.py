"""How an old manifest over a newer one is mended, and how the first segment of a dated log is named."""

from __future__ import annotations

import msgspec
import pytest

from kcl_landing.log import (
    PAGE,
    Begin,
    LogInfo,
    begin_path,
)
from kcl_landing.writer import LogAltered
from tests.landing.footers import AT, HOUR_MS, SHARD, STREAM, Shard, land, made, stored
from tests.landing.memory_store import MemoryStore, Operation


@pytest.mark.parametrize("known", [0, 3, PAGE - 2])
def test_an_old_manifest_over_that_of_an_ended_shard_is_mended(shard: Shard, known: int) -> None:
    """Its writer lost the lease in the middle of its PUT, and wakes when another one has ended the shard."""
    shard.write(0, known - 1)
    if not known:
        shard.log.at_tip(behind_ms=0, at_ms=0)
    old = shard.store.read(AT)
    other = shard.again()
    other.log.open()
    other.write(known, PAGE + 3)
    end = land(shard.store, shard.info, made(PAGE + 4, is_end=True))
    other.log.append(end, behind_ms=0, at_ms=1)
    last = other.log.manifest()
    shard.store.replace(AT, old)
    leader = shard.again()
    leader.log.mend_end()
    found = leader.log.manifest()
    assert found is not None
    assert last is not None
    assert found.entries == last.entries
    assert len(leader.warnings) == 1
    shard.store.calls.clear()
    shard.again().log.mend_end()
    assert shard.store.calls == [("read", AT)], "what is right costs one read"


def test_only_the_manifest_of_an_ended_shard_is_mended(shard: Shard) -> None:
    """Of any other shard there is an owner, whose manifest must not become older by this."""
    shard.log.mend_end()
    assert not shard.store.objects
    shard.write(0, 3)
    land(shard.store, shard.info, made(4))
    before = dict(shard.store.objects)
    shard.again().log.mend_end()
    assert shard.store.objects == before


def test_the_manifest_of_an_ended_shard_is_mended_by_the_segments_that_it_lacks(shard: Shard) -> None:
    shard.write(0, 3)
    end = land(shard.store, shard.info, made(4, is_end=True))
    leader = shard.again()
    read = leader.read_meanwhile(leader.log.mend_end)
    assert [each for each in read if not each.startswith("_manifests")] == [shard.path(end)]
    assert stored(shard.store).entries[-1] == end


def test_a_manifest_with_nothing_but_the_end_costs_one_read(shard: Shard) -> None:
    shard.write(0, PAGE - 1)
    end = land(shard.store, shard.info, made(PAGE, is_end=True))
    shard.log.append(end, behind_ms=0, at_ms=1)
    assert stored(shard.store).entries == (end,)
    shard.store.calls.clear()
    shard.again().log.mend_end()
    assert shard.store.calls == [("read", AT)]


@pytest.mark.parametrize("known", [1, PAGE - 1, PAGE])
def test_an_old_manifest_over_that_of_an_open_shard_is_mended_by_its_owner(shard: Shard, known: int) -> None:
    """An earlier owner lost the lease in the middle of its PUT, and wakes when the next one has written more."""
    shard.write(0, known - 1)
    old = shard.store.read(AT)
    owner = shard.again()
    owner.log.open()
    owner.write(known, known + 2)
    last = owner.log.manifest()
    shard.store.replace(AT, old)
    owner.log.mend(behind_ms=0, at_ms=known + 2)
    assert owner.log.manifest() == last
    assert len(owner.warnings) == 1
    shard.store.calls.clear()
    owner.log.mend(behind_ms=5, at_ms=1_000)
    assert shard.store.calls == [("read", AT)], "what is right costs one read"


@pytest.mark.parametrize("content", [None, b"{"])
def test_a_manifest_that_is_lost_or_damaged_is_written_again_by_its_owner(
    shard: Shard, content: bytes | None
) -> None:
    shard.write(0, 2)
    whole = shard.store.read(AT)
    shard.store.remove([AT])
    if content is not None:
        shard.store.replace(AT, content)
    shard.log.mend(behind_ms=0, at_ms=2)
    assert shard.store.read(AT) == whole


def test_who_has_lost_the_shard_mends_nothing_that_is_newer(shard: Shard) -> None:
    shard.write(0, 2)
    other = shard.again()
    other.log.open()
    other.write(3, 3)
    before = dict(shard.store.objects)
    shard.log.mend(behind_ms=0, at_ms=9)
    assert shard.store.objects == before


BEGIN = begin_path(STREAM, SHARD, 0)
NOON_MS = 500_004 * HOUR_MS


@pytest.fixture
def dated() -> Shard:
    return Shard(MemoryStore(), LogInfo("app", "dated", "parquet", "id-1"))


def test_layout_log_needs_no_word_of_how_the_first_segment_is_named() -> None:
    shard = Shard(MemoryStore(), LogInfo("app", "log", "parquet", "id-1"))
    assert shard.log.other_begin(0, NOON_MS, is_end=False) is None
    assert shard.store.objects == {}


@pytest.mark.parametrize(
    ("later_ms", "is_end", "agree"),
    [
        (0, False, True),
        (HOUR_MS - 1, False, True),
        (HOUR_MS, False, False),
        (-1, False, False),
        (0, True, False),
    ],
)
def test_who_comes_first_names_the_first_segment_by_its_hour(
    dated: Shard, later_ms: int, is_end: bool, agree: bool
) -> None:
    first = Begin(NOON_MS, is_end=False)
    assert dated.log.other_begin(0, NOON_MS, is_end=False) is None
    assert msgspec.json.decode(dated.store.read(BEGIN), type=Begin) == first
    found = dated.again().log.other_begin(0, NOON_MS + later_ms, is_end)
    assert found == (None if agree else first)
    backwards = dated.again()
    backwards.store.replace(BEGIN, msgspec.json.encode(Begin(NOON_MS + later_ms, is_end)))
    assert (backwards.log.other_begin(0, NOON_MS, is_end=False) is None) is agree


def test_hours_agree_that_neither_begins(dated: Shard) -> None:
    assert dated.log.other_begin(0, NOON_MS + 7, is_end=False) is None
    assert dated.again().log.other_begin(0, NOON_MS + 8, is_end=False) is None


def test_a_segment_is_looked_for_under_the_name_that_the_first_writer_gave(dated: Shard) -> None:
    theirs = made(0)
    assert dated.log.other_begin(0, theirs.first_ms, is_end=False) is None
    other = dated.again()
    later_ms = theirs.first_ms + 3 * HOUR_MS
    assert other.log.other_begin(0, later_ms, is_end=False) is not None
    assert other.log.footer(0, later_ms, is_end=False) is None
    land(dated.store, dated.info, theirs)
    assert other.log.footer(0, later_ms, is_end=False) == theirs


@pytest.mark.parametrize("first_ms", [0, 253_402_300_799_999])
def test_any_time_up_to_the_year_10000_can_name_the_first_segment(dated: Shard, first_ms: int) -> None:
    dated.store.create(BEGIN, msgspec.json.encode(Begin(first_ms, is_end=False)))
    assert dated.log.other_begin(0, NOON_MS, is_end=False) == Begin(first_ms, is_end=False)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "cannot be read"),
        (msgspec.json.encode(Begin(NOON_MS, is_end=False, version=0)), "cannot be used"),
        (msgspec.json.encode(Begin(NOON_MS, is_end=False, version=2)), "cannot be used"),
        (msgspec.json.encode(Begin(-1, is_end=False)), "cannot be used"),
        (msgspec.json.encode(Begin(253_402_300_800_000, is_end=False)), "cannot be used"),
        (msgspec.json.encode(Begin(253_402_300_800_001, is_end=False)), "cannot be used"),
    ],
)
def test_a_word_that_says_nothing_stops_the_writer(dated: Shard, content: bytes, words: str) -> None:
    dated.store.create(BEGIN, content)
    with pytest.raises(LogAltered, match=f"{BEGIN} {words}"):
        dated.log.other_begin(0, NOON_MS, is_end=False)


def test_a_word_that_is_removed_while_it_is_read_stops_the_writer(dated: Shard) -> None:
    dated.store.create(BEGIN, msgspec.json.encode(Begin(NOON_MS, is_end=False)))

    def remove(operation: Operation, path: str) -> None:
        if (operation, path) == ("read", BEGIN):
            dated.store.objects.pop(BEGIN, None)

    dated.store.before = remove
    with pytest.raises(LogAltered, match=f"{BEGIN} cannot be read"):
        dated.log.other_begin(0, NOON_MS, is_end=False)
