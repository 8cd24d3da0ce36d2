"""Reports ready, stopping and alive to systemd (`sd_notify`)."""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping
from typing import Final, Self

import anyio

from kcl_daemon.ports import Clock, Log

_SOCKET: Final = "NOTIFY_SOCKET"
_PERIOD: Final = "WATCHDOG_USEC"
_WATCHED: Final = "WATCHDOG_PID"
# A slow start asks for this much more time, again and again.
START_EXTENDED_S: Final = 60.0


class ServiceManager:
    """`address` is a datagram socket, `@` first for an abstract name; None: no service manager.

    It kills a process that is silent for `watchdog_s` (None: no watchdog).
    """

    def __init__(self, address: str | None, *, watchdog_s: float | None, log: Log) -> None:
        self._address = address
        self._watchdog_s = watchdog_s
        self._log = log
        self._is_ready = False

    @classmethod
    def of(cls, environment: MutableMapping[str, str], log: Log, pid: int | None = None) -> Self:
        """Removes the variables, so that children do not inherit them."""
        address = environment.pop(_SOCKET, None)
        period, watched = environment.pop(_PERIOD, ""), environment.pop(_WATCHED, "")
        if address is not None and not address.startswith(("/", "@")):
            log.warning("service_manager_not_told", address=address, error="not a socket of this machine")
            address = None
        is_ours = watched in {"", str(os.getpid() if pid is None else pid)}
        watches = is_ours and period.isdecimal() and int(period) > 0
        return cls(address, watchdog_s=int(period) / 1_000_000 if watches else None, log=log)

    def ready(self) -> None:
        """Dependent services may start now."""
        self._is_ready = True
        self._report("READY=1\nSTATUS=reading")

    def stopping(self) -> None:
        self._report("STOPPING=1\nSTATUS=stopping: children finish, leases are released")

    def alive(self) -> None:
        """Report that the event loop runs; before `ready`, ask for more start time."""
        self._report("WATCHDOG=1" if self._is_ready else f"EXTEND_TIMEOUT_USEC={START_EXTENDED_S * 1e6:.0f}")

    async def run_watchdog(self, clock: Clock) -> None:
        """Reports twice in each watchdog period, until cancelled."""
        if self._address is None:
            await anyio.sleep_forever()
        while True:
            self.alive()
            pause_s = START_EXTENDED_S / 3
            if self._watchdog_s is not None:
                pause_s = min(pause_s, self._watchdog_s / 2)
            await clock.sleep(pause_s)

    def _report(self, text: str) -> None:
        """Never waits or raises."""
        if self._address is None:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as channel:
                channel.sendto(text.encode("ascii"), address)
        except OSError as error:
            self._log.warning("service_manager_not_told", address=self._address, error=str(error))
