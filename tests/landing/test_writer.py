"""What a taken number means."""

from __future__ import annotations

import pytest

from kcl_landing.log import Footer
from kcl_landing.writer import LogAltered, ShardWriter, Tail, Taken


def footer(number: int, after: str, last: str, *, token: int, writer: str = "other") -> Footer:
    return Footer("app", "stream", "shard", number, number, after, last, 1, 0, 0, token, writer)


@pytest.mark.parametrize(
    ("token", "writer", "meaning"),
    [
        (1, "me", Taken.OURS),
        (1, "other", Taken.EARLIER),
        (2, "other", Taken.EARLIER),
        (3, "other", Taken.NEWER),
    ],
)
def test_a_taken_number_is_adopted(token: int, writer: str, meaning: Taken) -> None:
    mine = ShardWriter(Tail(4, (9, 0), 0), (9, 0), token=2, writer="me")
    mine.take((11, 0))
    assert mine.taken(footer(5, "9/0", "12/0", token=token, writer=writer)) is meaning
    assert (mine.tail.number, mine.tail.last, mine.mark) == (5, (12, 0), (12, 0))


def test_a_newer_owner_may_have_begun_the_log_elsewhere() -> None:
    """Without a landing the shard was read further meanwhile, by a program."""
    late = ShardWriter(Tail(), (5, 0), token=1, writer="me")
    assert late.taken(footer(0, "9/0", "12/0", token=2)) is Taken.NEWER
    newest = ShardWriter(Tail(), (9, 0), token=2, writer="me")
    with pytest.raises(LogAltered, match="segment 0 begins after 5/0"):
        newest.taken(footer(0, "5/0", "7/0", token=1))
