"""The window: what may run, what must wait, and up to where all is done."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from kcl_client._window import Entry, Window
from tests.examples import examples


@dataclass
class Model:
    """The rules once more, over everything that was ever added."""

    concurrency: int
    by_key: bool
    keys: list[str] = field(default_factory=list[str])
    running: dict[int, Entry[int, str]] = field(default_factory=dict[int, Entry[int, str]])
    done: set[int] = field(default_factory=set[int])

    def may_start(self) -> int | None:
        """The oldest record that nothing holds back."""
        if len(self.running) >= self.concurrency:
            return None
        busy: set[str] = set()
        for number, key in enumerate(self.keys):
            if number in self.done:
                continue
            if number not in self.running and not (self.by_key and key in busy):
                return number
            busy.add(key)
        return None

    @property
    def mark(self) -> int | None:
        """The last of the records that are done without a gap."""
        first_open = next((n for n in range(len(self.keys)) if n not in self.done), len(self.keys))
        return first_open - 1 if first_open else None


ACTS = st.lists(st.sampled_from(["add", "start", "start", "done", "done"]), max_size=120)


@settings(max_examples=examples(300))
@given(st.integers(1, 5), st.booleans(), ACTS, st.data())
def test_a_window_follows_the_rules_whatever_comes_and_ends(
    concurrency: int, by_key: bool, acts: list[str], data: st.DataObject
) -> None:
    window: Window[int, str] = Window(concurrency=concurrency, by_key=by_key)
    model = Model(concurrency, by_key)
    for act in acts:
        if act == "add":
            key = data.draw(st.sampled_from("abc"))
            window.add(key, len(model.keys), f"{key}{len(model.keys)}", 10)
            model.keys.append(key)
        elif act == "start":
            expected = model.may_start()
            entry = window.start()
            assert (None if entry is None else entry.position) == expected
            if entry is not None:
                assert entry.item == f"{entry.key}{entry.position}"
                model.running[entry.position] = entry
        elif model.running:
            number = data.draw(st.sampled_from(sorted(model.running)))
            window.done(model.running.pop(number))
            model.done.add(number)
        assert window.mark == model.mark
        assert window.running == len(model.running) <= concurrency
        above = -1 if model.mark is None else model.mark
        assert len(window) == len(model.keys) - above - 1
        assert window.waiting_bytes == 10 * (len(model.keys) - len(model.done))


@settings(max_examples=examples(100))
@given(st.integers(1, 5), st.booleans(), st.lists(st.sampled_from("abcd"), max_size=60), st.data())
def test_everything_is_done_in_the_end_and_each_key_in_order(
    concurrency: int, by_key: bool, keys: list[str], data: st.DataObject
) -> None:
    window: Window[int, str] = Window(concurrency=concurrency, by_key=by_key)
    for position, key in enumerate(keys):
        window.add(key, position, key, 1)
    running: list[Entry[int, str]] = []
    ended: list[tuple[str | None, int]] = []
    while window:
        while (entry := window.start()) is not None:
            running.append(entry)
        assert running, "a window that is not empty always has work"
        entry = running.pop(data.draw(st.integers(0, len(running) - 1)))
        window.done(entry)
        ended.append((entry.key, entry.position))
        assert entry.item is None, "its payload is let go"
    assert window.mark == (len(keys) - 1 if keys else None)
    for key in set(keys) if by_key else ():
        positions = [position for other, position in ended if other == key]
        assert positions == sorted(positions)


def test_a_slow_record_holds_back_its_key_and_the_mark_but_nobody_else() -> None:
    window: Window[int, str] = Window(concurrency=2, by_key=True)
    for position, key in enumerate("aabcd"):
        window.add(key, position, key, 1)
    slow = window.start()
    assert slow is not None
    seen: list[int] = []
    while (entry := window.start()) is not None:
        seen.append(entry.position)
        window.done(entry)
    assert (seen, window.mark, len(window)) == ([2, 3, 4], None, 5)
    window.done(slow)
    last = window.start()
    assert last is not None
    assert (last.position, window.mark) == (1, 0)
    window.done(last)
    assert (window.mark, len(window)) == (4, 0)


def test_records_without_a_key_do_not_wait_for_one_another() -> None:
    window: Window[int, str] = Window(concurrency=3, by_key=True)
    for position, key in enumerate([None, None, "k", "k"]):
        window.add(key, position, "item", 1)
    begun = [window.start() for _ in range(3)]
    assert [each and each.position for each in begun] == [0, 1, 2]
    for each in begun:
        assert each is not None
        window.done(each)
    assert (window.mark, window.start() is None) == (2, False)


def test_no_more_records_are_under_way_than_may_be_at_once() -> None:
    window: Window[int, str] = Window(concurrency=2, by_key=True)
    for position, key in enumerate("abcd"):
        window.add(key, position, key, 1)
    first, second = window.start(), window.start()
    assert first is not None
    assert second is not None
    assert window.start() is None
    window.done(second)
    third = window.start()
    assert third is not None
    assert (third.position, window.start(), window.running) == (2, None, 2)
