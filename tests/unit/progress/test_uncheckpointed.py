"""The oldest record that the stored checkpoint does not cover, against a model that remembers every batch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kcl_daemon.progress.flow import BATCHES_MOST, Uncheckpointed
from kcl_protocol.sequence import SHARD_END, TRIM_HORIZON
from tests.unit.progress.support import position


class Model:
    """All batches: their last records and the arrivals of their first."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, float]] = []

    def delivered(self, last: int, arrived_s: float) -> None:
        if not self.batches or last > self.batches[-1][0]:
            self.batches.append((last, arrived_s))

    def oldest_s(self, stored: int) -> float | None:
        return next((arrived_s for last, arrived_s in self.batches if last > stored), None)


_steps = st.lists(
    st.one_of(
        st.tuples(st.just("batch"), st.integers(1, 50)),
        st.tuples(st.just("again"), st.integers(0, 60)),
        st.tuples(st.just("checkpoint"), st.integers(0, 100)),
    ),
    max_size=120,
)


@given(_steps)
def test_it_is_that_of_the_first_batch_that_is_not_covered(steps: list[tuple[str, int]]) -> None:
    """Batches come in order, some again after a failure; a checkpoint is anywhere in what was delivered."""
    found, model, now_s, last, stored = Uncheckpointed(), Model(), 0.0, 0, -1
    for what, number in steps:
        now_s += 1
        if what == "checkpoint":
            stored = max(stored, last * number // 100)
        else:
            last = last + number if what == "batch" else max(stored, last - number)
            model.delivered(last, now_s)
            if last > stored:
                found.delivered(position(last), now_s, position(max(stored, 0)))
        assert found.oldest_s(position(max(stored, 0))) == model.oldest_s(max(stored, 0))


def test_a_child_that_never_checkpoints_costs_no_more_memory() -> None:
    found = Uncheckpointed()
    for number in range(1, 100 * BATCHES_MOST):
        found.delivered(position(number), float(number), TRIM_HORIZON)
    assert found.oldest_s(TRIM_HORIZON) == 1.0
    assert len(found._batches) <= BATCHES_MOST
    half = found.oldest_s(position(50 * BATCHES_MOST))
    assert half is not None
    assert 49 * BATCHES_MOST <= half <= 50 * BATCHES_MOST + 1, "what was joined is as old as the first of it"
    for number in range(100 * BATCHES_MOST, 101 * BATCHES_MOST):
        found.delivered(position(number), float(number), position(number - 2))
    last = 101 * BATCHES_MOST - 1
    assert found.oldest_s(position(last - 1)) == last, "a child that is a batch late does not stay joined"
    assert found.oldest_s(position(101 * BATCHES_MOST)) is None


def test_a_checkpoint_within_the_batch_that_is_just_finished_leaves_the_rest_of_it() -> None:
    found = Uncheckpointed()
    found.delivered(position(10), 5.0, position(9))
    assert found.oldest_s(position(9)) == 5.0
    found.delivered(position(20), 6.0, position(20))
    assert found.oldest_s(position(20)) is None
    found.delivered(position(30), 7.0, position(20))
    assert found.oldest_s(SHARD_END) is None
