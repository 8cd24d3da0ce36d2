"""What the leader's lock row says of leases that were given away, for those who only read it.

Owns when the row was last read and whether it tells at all. Knows nothing of leases; who looks for them is told.
"""

from __future__ import annotations

from collections.abc import Callable

from kcl_daemon.coordination.timings import Timings
from kcl_daemon.leases.leader import LeaderLock
from kcl_daemon.ports import Clock


def _nobody_listens() -> None:
    """The default of `on_news`."""


class Bulletin:
    """The news as the elector reads them, look by look.

    A worker that can go by the news makes one read where it would make two: of the lock, and of its leases.
    """

    def __init__(self, *, clock: Clock, timings: Timings) -> None:
        self._clock = clock
        self._timings = timings
        self._news: str | None = None
        self._read_s: float | None = None
        self._changed_s = clock.monotonic()
        self._on_news: Callable[[], None] = _nobody_listens

    def on_news(self, callback: Callable[[], None]) -> None:
        """Have a function called, from the loop, whenever leases may have been given away, or nobody says so any more."""
        self._on_news = callback

    @property
    def is_kept(self) -> bool:
        """Whether the row tells and was read lately; else everybody must ask for leases."""
        return (
            self._news is not None
            and self._read_s is not None
            and self._clock.monotonic() - self._read_s <= 2 * self._timings.news_s(0)
        )

    @property
    def is_fresh(self) -> bool:
        """Whether there were news a moment ago. An index may be behind them, so one question is not enough."""
        return self._clock.monotonic() - self._changed_s <= self._timings.failover_s / 2

    def read(self, lock: LeaderLock | None) -> None:
        """The row was read; None: there is no leader, so the next one may have given leases away before we see it."""
        self._take(None if lock is None else lock.news)
        self._read_s = self._clock.monotonic()

    def unreadable(self) -> None:
        """The row could not be read."""
        self._take(None)

    def _take(self, news: str | None) -> None:
        if news != self._news:
            self._news, self._changed_s = news, self._clock.monotonic()
            self._on_news()
