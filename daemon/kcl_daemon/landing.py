"""The lander beside the daemon."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Final

import msgspec
import orjson

from kcl_daemon.config.settings import Settings
from kcl_daemon.helper_process import Helper, LogLine, helper_environment
from kcl_daemon.leases.lease import Lease
from kcl_daemon.ports import Clock, Log
from kcl_daemon.telemetry.helper_views import LandingShardView, LandingTrouble, LandingView
from kcl_daemon.text import masked, on_one_line

# A store answers within a minute, or says that it cannot.
_FLUSH_MS: Final = 60_000
_MESSAGE_CHARACTERS: Final = 300
_ROSTER_LOOK_S: Final = 1.0
_ROSTER_EVERY_S: Final = 60.0


class _Report(msgspec.Struct, frozen=True):
    shards: dict[str, dict[str, object]]
    trouble: LandingTrouble | None = None


def _view(fields: Mapping[str, object]) -> LandingView:
    reported = msgspec.convert(fields, _Report)
    shards = [
        msgspec.convert({**each, "name": on_one_line(name)}, LandingShardView)
        for name, each in sorted(reported.shards.items())
    ]
    trouble = reported.trouble
    if trouble is not None:
        message = on_one_line(masked(trouble.message))[:_MESSAGE_CHARACTERS]
        trouble = replace(trouble, cause=on_one_line(trouble.cause), message=message)
    return LandingView(tuple(shards), trouble)


def _aged(reported: LandingView, age_s: float) -> LandingView:
    trouble = reported.trouble
    return LandingView(
        trouble=None if trouble is None else replace(trouble, since_s=trouble.since_s + age_s),
        shards=tuple(
            replace(each, lag_s=each.lag_s + age_s if each.waiting_rows else 0.0) for each in reported.shards
        ),
    )


def roster_line(leases: Sequence[Lease], settings: Settings) -> bytes:
    """Which shards a reader must know of, with their parents, by the lander's name of their stream."""
    roster: dict[str, dict[str, list[str]]] = {}
    for lease in leases:
        stream = settings.stream_name if lease.stream is None else lease.stream.name
        roster.setdefault(stream, {})[lease.shard_id] = sorted(lease.parent_shard_ids)
    said = {"roster": roster, "failoverMs": settings.leases.failover_time_ms}
    return orjson.dumps(said, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_SORT_KEYS)


class Rosters:
    """`leases`: of all streams, as the leader has read them last; None while another worker leads."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.leases: Callable[[], Sequence[Lease] | None] = lambda: None
        self._settings = settings
        self._clock = clock

    async def lines(self) -> AsyncGenerator[bytes, None]:
        """The newest when it differs from the last one, and at least each minute."""
        line, leases, told_s = b"", None, 0.0
        while True:
            await self._clock.sleep(_ROSTER_LOOK_S)
            read, now_s = self.leases(), self._clock.monotonic()
            if read is None:
                continue
            told = line
            if read is not leases:  # each look at the table makes a list of its own
                line, leases = roster_line(read, self._settings), read
            if line != told or now_s - told_s >= _ROSTER_EVERY_S:
                told_s = now_s
                yield line


class Lander(Helper[LandingView]):
    refusing = "the lander refuses to go on"
    wanted_by = "landing"
    extra = "landing"
    needs = ("kcl_landing", "pyarrow")
    program = "kcl_landing.lander"
    pid_field = "lander_pid"
    ready = "lander_ready"
    reports = "landing_figures"
    started = LogLine("info", "lander_started")
    ended = LogLine("warning", "lander_ended", code=int, restart_in_s=float)
    printed = LogLine("info", "lander_output", line=str)
    unread = LogLine("warning", "lander_event_not_read", error=str, line=str, advice=str)
    unread_figures = LogLine("warning", "landing_figures_not_read", error=str, advice=str)

    @cached_property
    def rosters(self) -> Rosters:
        return Rosters(self._settings, self._clock)

    def learns_leases(self, leases: Callable[[], Sequence[Lease] | None]) -> None:
        self.rosters.leases = leases

    @staticmethod
    def drain_ms(settings: Settings) -> int:
        del settings
        return _FLUSH_MS

    @staticmethod
    def environment(settings: Settings) -> dict[str, str]:
        """With credentials: it is ours, and writes to the store."""
        profiles = (each.profile_name for each in settings.endpoints.credentials.kinesis)
        profile = next(filter(None, profiles), None)
        return helper_environment(credentials=True, **({} if profile is None else {"AWS_PROFILE": profile}))

    @staticmethod
    def options(settings: Settings, socket: Path) -> bytes:
        options = {
            **asdict(settings.landing),
            "endpoint": settings.landing.endpoint or "",
            "application": settings.application_name,
            "stream": settings.stream_name,
            "socket": str(socket),
            "worker": settings.worker_id,
            "region": settings.endpoints.region_name or "",
        }
        return orjson.dumps(options, option=orjson.OPT_APPEND_NEWLINE)

    async def lines(self) -> AsyncGenerator[bytes, None]:
        yield self.options(self._settings, self._socket)
        async with aclosing(self.rosters.lines()) as lines:
            async for line in lines:
                yield line

    def read(self, fields: Mapping[str, object]) -> Callable[[float], LandingView]:
        return partial(_aged, _view(fields))

    def tell(self, log: Log, level: str, event: str, /, **fields: object) -> None:
        getattr(log, level)(event, **fields)
