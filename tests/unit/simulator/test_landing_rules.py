"""What the rules of a landing log want in it, where reading begins anew at the latest record."""

from __future__ import annotations

import msgspec
import pytest

from kcl_landing.log import Footer, said
from kcl_landing.positions import START, Position
from tests.simulator.rules.landing import Landing, LandingPlan, Segment
from tests.simulator.rules.truth import Truth
from tests.simulator.trace import Trace
from tests.unit.simulator.helpers import violation_while


class Scene:
    """A shard with four records; its first owner was given two of them."""

    def __init__(self) -> None:
        self.truth = Truth()
        self.truth.shard_created("shard", ())
        self.shard = self.truth.shards["shard"]
        for number in (11, 12, 13, 14):
            self.truth.record_written("shard", number, 0.0, "")
        self.landing = Landing(LandingPlan(), self.truth, Trace())
        self.give(0, 1)
        self._last = START
        self._segments = 0

    def give(self, *places: int) -> None:
        for place in places:
            self.shard.delivered(place)

    def land(self, *numbers: int) -> None:
        rows: tuple[Position, ...] = tuple((number, 0) for number in numbers)
        after, self._last = self._last, rows[-1]
        where = self._segments, self._segments, said(after), said(self._last), len(rows)
        footer = Footer("landing", "stream", "shard", *where, first_ms=0, last_ms=0, token=1, writer="a")
        self._segments += 1
        content = Segment(footer, rows, 0.0, tuple(0 for _ in rows))
        self.landing.create(f"stream/{footer.number}", msgspec.json.encode(content))

    def begin_anew(self) -> None:
        self.shard.excuse_all()
        self.landing.begins_anew(self.shard)


@pytest.mark.parametrize(
    ("before", "after", "violation"),
    [
        ((), (14,), None),
        ((), (12, 14), None),  # what its former owner was given is landed late
        ((), (13, 14), None),  # what nobody was given before is owed once somebody is given it
        ((11,), (14,), "missing_in_log"),
    ],
)
def test_who_begins_anew_at_the_latest_record_owes_what_came_before_only_to_a_log_that_has_begun(
    before: tuple[int, ...], after: tuple[int, ...], violation: str | None
) -> None:
    async def main() -> None:
        scene = Scene()
        if before:
            scene.land(*before)
        scene.begin_anew()
        scene.give(*(number - 11 for number in after if number > 12))
        scene.land(*after)

    assert violation_while(main) == violation
