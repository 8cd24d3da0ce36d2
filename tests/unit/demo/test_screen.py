"""What is shown while the demo runs."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.live import Live

from kcl_local.demo.check import ShardProgress, ShardState
from kcl_local.demo.screen import (
    DemoProgress,
    PlainScreen,
    TableScreen,
    checkpoint_in_words,
    open_screen,
    plain_line,
    progress_table,
    short_name,
    state_in_words,
)


def shard(
    number: int, state: ShardState, *parents: int, delivered: int = 5, unsaved: int = 0
) -> ShardProgress:
    return ShardProgress(
        shard_id=f"shardId-{number:012d}",
        parents=tuple(f"shardId-{parent:012d}" for parent in parents),
        is_open=state is not ShardState.ENDED,
        state=state,
        numbers=set(range(9)),
        first_delivered_s=dict.fromkeys(range(delivered), 0.0),
        unsaved=unsaved,
    )


ENDED = shard(0, ShardState.ENDED)
READING = shard(1, ShardState.READING, unsaved=3)
WAITING = shard(12, ShardState.WAITING, 0, 1, delivered=0)
PROGRESS = DemoProgress(12.34, (ENDED, READING, WAITING))


def test_names_are_short() -> None:
    assert [short_name(one.shard_id) for one in PROGRESS.shards] == ["0", "1", "12"]
    assert short_name("another") == "another"


def test_totals_are_over_all_shards() -> None:
    assert (PROGRESS.written, PROGRESS.delivered, PROGRESS.behind) == (27, 10, 17)


def test_states_and_checkpoints_have_words() -> None:
    assert [state_in_words(one) for one in PROGRESS.shards] == ["ended", "reads", "awaits parents"]
    assert [checkpoint_in_words(one) for one in PROGRESS.shards] == ["SHARD_END", "3 behind", "-"]
    assert checkpoint_in_words(shard(2, ShardState.READING)) == "all"
    assert state_in_words(shard(3, ShardState.STOPPED, 0)) == "stopped"


def test_a_plain_line_has_everything() -> None:
    line = plain_line(PROGRESS)
    assert line == " 12.3 s  written 27 delivered 10 behind 17 | 0=5/9  1+5/9  12.0/9"


def test_plain_lines_come_once_a_second(capsys: pytest.CaptureFixture[str]) -> None:
    screen = PlainScreen()
    for tenth in range(31):
        screen.show(DemoProgress(tenth / 10, ()))
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_the_table_has_a_row_for_each_shard_and_one_for_all() -> None:
    console = Console(file=io.StringIO(), width=80)
    with console.capture() as captured:
        console.print(progress_table(PROGRESS))
    text = captured.get()
    for word in ("delivered", "checkpoint", "awaits parents", "SHARD_END", "3 behind", "0 1", "27"):
        assert word in text
    assert progress_table(PROGRESS).row_count == 4


def test_the_table_takes_text_literally() -> None:
    console = Console(file=io.StringIO(), width=120, force_terminal=True)
    with Live(console=console, auto_refresh=False) as live, console.capture() as captured:
        screen = TableScreen(console, live)
        screen.show(PROGRESS)
        screen.say("[bold]key = a[0]")
    assert "[bold]key = a[0]" in captured.get()


def test_without_a_terminal_the_lines_are_plain() -> None:
    with open_screen(plain=False) as screen:
        assert isinstance(screen, PlainScreen)
