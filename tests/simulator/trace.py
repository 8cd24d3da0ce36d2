"""What happened in a run, in order: for people to read and for a digest that says whether two runs were the same.

Owns the `Log` port of simulated workers. Knows nothing of what the events mean.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from hashlib import blake2b
from typing import Final, cast

from kcl_daemon.progress.progress import WaitReason
from tests.simulator.loop import now
from tests.simulator.violation import report

Write = Callable[[str], None]
# What a worker says when it has met a fault of its own.
_MUST_NEVER_HAPPEN: Final = frozenset({"consumer_crashed", "invariant_violated"})
_STALLED: Final = "shard_stalled"
_MOVES: Final = "shard_moves_again"
_LOST: Final = "position_trimmed"
_SKIPPED: Final = "record_skipped"


def lease_name(bound: dict[str, object]) -> str:
    """The lease key that the fields of a shard's log make."""
    return ":".join(str(bound[name]) for name in ("stream", "shard_id") if name in bound)


class Trace:
    """The events of one run.

    Args:
        write: is given each event as a line; None: only the digest is kept.
    """

    def __init__(self, write: Write | None = None) -> None:
        self._write = write
        self._digest = blake2b(digest_size=16)
        self.warnings: Counter[str] = Counter()
        self.stalls: dict[tuple[str, str], float] = {}
        """Virtual time of the last `shard_stalled` of each worker and shard."""
        self.stall_causes: dict[tuple[str, str], tuple[str, int | None]] = {}
        """Its cause, and the lane that it named."""
        self.lane_stalls: list[tuple[str, str, int, str]] = []
        """Worker, shard, lane and cause of those that were not looked at yet."""
        self.moves: dict[tuple[str, str], float] = {}
        """Virtual time of the last `shard_moves_again`."""
        self.on_skip: Callable[[str, str, int | None, tuple[int, int], int], None] = lambda *_: None
        """Worker, shard, lane, position and count of records that are skipped."""
        self.losses: dict[str, set[str]] = {}
        """The levels at which each shard was said to have lost something."""

    @property
    def digest(self) -> str:
        """The same for two runs in which the same happened at the same times."""
        return self._digest.hexdigest()

    def note(self, who: str, event: str, detail: str = "") -> None:
        """Something happened now."""
        self._digest.update(f"{now():.6f} {who} {event} {detail}\n".encode())
        if self._write is not None:
            self._write(f"{now():10.3f}  {who:<12} {event:<24} {detail}")

    def log(
        self, who: str, level: str, event: str, *, bound: dict[str, object], fields: dict[str, object]
    ) -> None:
        """A worker logged something; `bound` are the fields that all events of this log have."""
        self._digest.update(f"{now():.6f} {who} {level} {event}\n".encode())
        if event in _MUST_NEVER_HAPPEN:
            report(event, f"{who}: {bound | fields}")
        if level in {"warning", "error"}:
            self.warnings[f"{level} {event}"] += 1
        if event == _SKIPPED:
            sub_number, count = cast("int", fields["sub_sequence_number"]), cast("int", fields["records"])
            first = int(cast("str", fields["sequence_number"])), sub_number
            self.on_skip(who, lease_name(bound), cast("int | None", bound.get("lane")), first, count)
        if event == _LOST:
            self.losses.setdefault(lease_name(bound), set()).add(level)
        if "lane" in bound:
            if event == _STALLED:
                self.lane_stalls.append(
                    (who, lease_name(bound), cast("int", bound["lane"]), _cause_of(fields)[0])
                )
        elif event == _STALLED:
            self.stalls[who, lease_name(bound)] = now()
            self.stall_causes[who, lease_name(bound)] = _cause_of(fields)
        elif event == _MOVES:
            self.moves[who, lease_name(bound)] = now()
        if self._write is not None:
            shown = " ".join(f"{name}={value}" for name, value in (bound | fields).items())
            self._write(f"{now():10.3f}  {who:<12} {level:<8} {event:<24} {shown}")


class TraceLog:
    """Port Log of one worker."""

    def __init__(self, trace: Trace, who: str, fields: dict[str, object] | None = None) -> None:
        self._trace = trace
        self._who = who
        self._fields = fields or {}

    def bind(self, **fields: object) -> TraceLog:
        """The same with more fields."""
        return TraceLog(self._trace, self._who, {**self._fields, **fields})

    def debug(self, event: str, /, **fields: object) -> None:
        """Log."""
        self._log("debug", event, fields)

    def info(self, event: str, /, **fields: object) -> None:
        """Log."""
        self._log("info", event, fields)

    def warning(self, event: str, /, **fields: object) -> None:
        """Log."""
        self._log("warning", event, fields)

    def error(self, event: str, /, **fields: object) -> None:
        """Log."""
        self._log("error", event, fields)

    def _log(self, level: str, event: str, fields: dict[str, object]) -> None:
        self._trace.log(self._who, level, event, bound=self._fields, fields=fields)


def named_lane(detail: str) -> int | None:
    """The lane that a shard waits for, as it says."""
    lane = re.match(r"lane (\d+)", detail)
    return None if lane is None else int(lane[1])


def _cause_of(fields: dict[str, object]) -> tuple[str, int | None]:
    cause, detail = str(fields["cause"]), str(fields["detail"])
    lane = named_lane(detail)
    # A lane whose children fail gets on when it checkpoints, as a shard does.
    if lane is not None and f"which waits for {WaitReason.RESTART.value}" in detail:
        return WaitReason.RESTART.value, lane
    return cause, lane
