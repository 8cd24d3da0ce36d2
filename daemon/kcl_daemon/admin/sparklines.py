"""The small lines of throughput over time, one for each shard, all over the same moments.

Pure. There are as many as shards and each has many points, so that what they have in common is worked out once.
"""

from __future__ import annotations

from typing import Final

from kcl_daemon.admin.history import History
from kcl_daemon.admin.markup import text
from kcl_daemon.observe.words import about, rate

_WIDTH: Final = 120
_HEIGHT: Final = 24
_SECONDS_LEAST: Final = 60.0
_STEPS: Final = 10 * (_HEIGHT - 3)
# The text of each height at which a point may be, from the lowest up.
_HEIGHTS: Final = tuple(f"{_HEIGHT - 1.5 - step / 10:.1f}" for step in range(_STEPS + 1))


class Sparklines:
    """Draws lines of one moment.

    Args:
        history: what there is to draw.
        now_s: by its clock.
    """

    def __init__(self, history: History, now_s: float) -> None:
        self._history = history
        self._ages_s = history.ages_s(now_s)
        per_s = (_WIDTH - 2) / max(self._ages_s[0] if self._ages_s else 0.0, _SECONDS_LEAST)
        self._places = [f"{_WIDTH - 1 - age_s * per_s:.0f}," for age_s in self._ages_s]

    def of(self, key: str) -> str:
        """The line of one lease; nothing where there are not two samples."""
        values = self._history.values(key)
        samples = [
            (place, value) for place, value in zip(self._places, values, strict=True) if value is not None
        ]
        if len(samples) < 2:
            return ""
        most = max(value for _, value in samples)
        if most > 0:
            scale = _STEPS / most
            points = " ".join([place + _HEIGHTS[int(value * scale)] for place, value in samples])
        else:
            points = f"{samples[0][0]}{_HEIGHTS[0]} {samples[-1][0]}{_HEIGHTS[0]}"
        since_s = next(age_s for age_s, value in zip(self._ages_s, values, strict=True) if value is not None)
        return _drawn(
            points, f"throughput in the last {about(max(since_s, _SECONDS_LEAST))}, at most {rate(most)}"
        )


def _drawn(points: str, label: str) -> str:
    return (
        f'<svg class="spark" role="img" aria-label="{text(label)}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}"><polyline points="{points}"/></svg>'
    )
