"""Reports trouble of the store once for all shards."""

from __future__ import annotations

import threading
from typing import Any, Final

from kcl_landing.control import EmitEvent, monotonic_s
from kcl_landing.store import Cause, StoreTrouble

REPORT_S: Final = 30.0
ADVICE: Final[dict[Cause, str]] = {
    "full": "make room, or raise the quota",
    "denied": "give the daemon's user or role the right to read, write and list there",
    "unreachable": "check the network, the mount and the address in landing",
    "slow down": "none is needed; if it stays, use longer windows (landingWindowMillis) or fewer writers",
    "failed": "look at the message; the store says no more",
}


class StoreWatch:
    """`who`: a shard; over when none has trouble. Thread-safe."""

    def __init__(self, log_event: EmitEvent) -> None:
        self._log_event = log_event
        self._lock = threading.Lock()
        self._who: set[object] = set()
        self._since_s = 0.0
        self._logged_s: float | None = None
        self._last: StoreTrouble | None = None

    def failed(self, who: object, trouble: StoreTrouble) -> None:
        now_s = monotonic_s()
        with self._lock:
            if not self._who:
                self._since_s = now_s
            self._who.add(who)
            self._last = trouble
            if self._logged_s is not None and now_s - self._logged_s < REPORT_S:
                return
            self._logged_s = now_s
            waited_s, shards = round(now_s - self._since_s), len(self._who)
        self._log_event(
            "warning",
            "landing_store_waits",
            cause=trouble.cause,
            error=str(trouble),
            waited_s=waited_s,
            shards=shards,
            advice=f"{ADVICE[trouble.cause]}; nothing is lost, and it goes on by itself",
        )

    def worked(self, who: object) -> None:
        if not self._who:
            return
        with self._lock:
            if who not in self._who:
                return
            self._who.discard(who)
            if self._who:
                return
            waited_s = round(monotonic_s() - self._since_s)
        self._log_event("info", "landing_store_works_again", waited_s=waited_s)

    def forget(self, who: object) -> None:
        with self._lock:
            self._who.discard(who)

    def figures(self) -> dict[str, Any] | None:
        with self._lock:
            if not self._who or self._last is None:
                return None
            since_s = round(monotonic_s() - self._since_s, 1)
            return {"cause": self._last.cause, "message": str(self._last), "since_s": since_s}
