"""The lander beside the daemon: its options, its figures, and what its end means."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec
import orjson

from kcl_daemon.config.settings import Settings
from kcl_daemon.errors import ConfigurationError, KclError
from kcl_daemon.helper_process import (
    CLOSED,
    EXIT_REFUSED,
    ONE_VERSION,
    Helper,
    HelperFigures,
    UnreadableLine,
    helper_environment,
    relay_file,
    running,
    with_relays,
)
from kcl_daemon.leases.lease import Lease
from kcl_daemon.ports import Clock, Log
from kcl_daemon.telemetry.helper_views import LandingShardView, LandingTrouble, LandingView
from kcl_daemon.text import masked, on_one_line

COMMAND: Final = (sys.executable, "-m", "kcl_landing.lander")
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


def lander_options(settings: Settings, socket: Path) -> bytes:
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
    pid_field = "lander_pid"

    def __init__(
        self,
        options: bytes,
        *,
        closed: Path,
        clock: Clock,
        log: Log,
        command: tuple[str, ...] = COMMAND,
        profile: str | None = None,
        rosters: Rosters | None = None,
    ) -> None:
        self.rosters = rosters
        self._landed = HelperFigures(clock, _view, _aged)
        more = {} if profile is None else {"AWS_PROFILE": profile}
        super().__init__(
            options,
            command=command,
            closed=closed,
            figures=self._landed,
            clock=clock,
            log=log,
            environment=helper_environment(credentials=True, **more),  # it is ours, and writes to the store
        )

    def learns_leases(self, leases: Callable[[], Sequence[Lease] | None]) -> None:
        if self.rosters is not None:
            self.rosters.leases = leases

    async def lines(self) -> AsyncGenerator[bytes, None]:
        yield self._options
        if self.rosters is not None:
            async with aclosing(self.rosters.lines()) as lines:
                async for line in lines:
                    yield line

    def judge(self, code: int) -> KclError | None:
        refuses = code == EXIT_REFUSED
        return ConfigurationError(f"the lander refuses to go on: {self.said}") if refuses else None

    def log_started(self, log: Log) -> None:
        log.info("lander_started")

    def log_ended(self, log: Log, code: int, pause_s: float) -> None:
        log.warning("lander_ended", code=code, restart_in_s=pause_s)

    def log_line(self, log: Log, line: str) -> None:
        log.info("lander_output", line=line)

    def log_unread(self, log: Log, event: UnreadableLine) -> None:
        log.warning("lander_event_not_read", error=event.error, line=event.line, advice=ONE_VERSION)

    def heard(self, name: str, fields: Mapping[str, object], log: Log) -> None:
        if name == "lander_ready":
            self.is_ready()
        elif name == "landing_figures" and (problem := self._landed.take(fields)) is not None:
            log.warning("landing_figures_not_read", error=problem, advice=ONE_VERSION)


@asynccontextmanager
async def lander(
    settings: Settings, *, clock: Clock, log: Log
) -> AsyncGenerator[tuple[Settings, Lander], None]:
    """The lander while the context is open.

    Raises:
        ConfigurationError: pyarrow is not installed, or the lander refuses to go on.
    """
    relay = relay_file("landing", "landing", "kcl_landing", "pyarrow")
    providers = settings.endpoints.credentials.kinesis
    with TemporaryDirectory(prefix="kcl-landing-") as folder:  # a socket's path must be short
        socket = Path(folder) / "lander"
        helper = Lander(
            lander_options(settings, socket),
            closed=socket.with_suffix(CLOSED),
            clock=clock,
            log=log,
            profile=next(filter(None, (each.profile_name for each in providers)), None),
            rosters=Rosters(settings, clock),
        )
        async with running(helper):
            yield with_relays(settings, relay=relay, socket=socket, drain_ms=_FLUSH_MS), helper
