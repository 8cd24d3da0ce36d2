"""Runs instead of the engine if the engine is on another host: forwards relays to its TLS listener.

Relays wait while the engine is unreachable. Exit codes: 0 stopped, 78 a person must fix something first.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import ssl
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kcl_landing.control import EmitEvent, Refused, monotonic_s, take_over_stdout
from kcl_landing.relays import accept_in_background, listen, shut
from kcl_spark.wire import PATIENCE_S, greeting, keep_alive, parse_address, read_line, write_line

EXIT_REFUSED: Final = 78
_CHUNK_BYTES: Final = 256 * 1024
_FIRST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 5.0
_REPORT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class UplinkOptions:
    """`authority`: PEM file of trusted certificates; empty: the system's."""

    engine: str
    authority: str
    token_file: str
    application: str
    stream: str
    socket: str


class Uplink:
    def __init__(self, options: UplinkOptions, log_event: EmitEvent) -> None:
        self._options = options
        self._log_event = log_event
        self._address = parse_address(options.engine)
        self._context = _context(options)
        self._greeting = write_line(greeting(options.token_file, options.application, options.stream))
        self._reported_s = -_REPORT_S
        self._stopped = threading.Event()
        self.refusal: Refused | None = None

    def run(self) -> None:
        path = Path(self._options.socket)
        with listen(path) as listening:
            accept_in_background(
                listening,
                lambda relay, _who: self._serve(relay),
                name="kcl-accept",
                is_closed=self._stopped.is_set,
                log_event=self._log_event,
            )
            self._log_event("info", "engine_ready", engine=self._options.engine)
            self._stopped.wait()
            path.unlink(missing_ok=True)
            shut(listening)
        if self.refusal is not None:
            raise self.refusal

    def stop(self) -> None:
        self._stopped.set()

    def _serve(self, relay: socket.socket) -> None:
        with relay:
            try:
                engine = self._connect(relay)
            except Refused as refusal:
                self.refusal = refusal
                self.stop()
                return
            if engine is not None:
                with engine, suppress(OSError):
                    pump(relay, engine)

    def _connect(self, relay: socket.socket) -> ssl.SSLSocket | None:
        pause_s = _FIRST_PAUSE_S
        while not self._stopped.is_set():
            try:
                return self._greeted()
            except ssl.SSLCertVerificationError as error:
                raise Refused(
                    f"sparkEngine: {self._options.engine} cannot prove who it is: {error.verify_message}; "
                    "sparkEngineAuthority names the certificate to trust, which must hold this host name"
                ) from error
            except (OSError, ValueError) as error:
                self._report_result(error)
            if _gone(relay, pause_s):
                return None
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return None

    def _greeted(self) -> ssl.SSLSocket:
        plain = socket.create_connection(self._address, timeout=PATIENCE_S)
        try:
            keep_alive(plain)
            engine = self._context.wrap_socket(plain, server_hostname=self._address[0])
        except OSError:
            plain.close()
            raise
        try:
            engine.sendall(self._greeting)
            refusal = read_line(engine)["refused"]
        except (OSError, ValueError, KeyError) as error:
            engine.close()
            raise OSError(f"no welcome: {error}") from error
        if refusal is not None:
            engine.close()
            raise Refused(f"the engine at {self._options.engine} refuses this host: {refusal}")
        engine.settimeout(None)
        return engine

    def _report_result(self, error: Exception) -> None:
        if monotonic_s() - self._reported_s >= _REPORT_S:
            self._reported_s = monotonic_s()
            self._log_event(
                "warning", "spark_engine_unreachable", engine=self._options.engine, error=str(error)
            )


def pump(relay: socket.socket, engine: ssl.SSLSocket) -> None:
    """Forward both ways in one thread, because a TLS connection is not thread-safe."""
    poll = select.poll()
    for each in (relay, engine):
        poll.register(each, select.POLLIN)
    while True:
        ready = {engine.fileno()} if engine.pending() else {descriptor for descriptor, _ in poll.poll()}
        for each, other in ((engine, relay), (relay, engine)):
            if each.fileno() in ready:
                piece = each.recv(_CHUNK_BYTES)
                if not piece:
                    return
                other.sendall(piece)


def _gone(relay: socket.socket, wait_s: float) -> bool:
    poll = select.poll()
    poll.register(relay, select.POLLRDHUP)
    return bool(poll.poll(wait_s * 1000))


def _context(options: UplinkOptions) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.authority or None)
    except OSError as error:
        raise Refused(f"sparkEngineAuthority: {options.authority}: {error}; it is a PEM file") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def main() -> int:
    log_event = take_over_stdout()
    reported: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    try:
        uplink = Uplink(UplinkOptions(**reported), log_event)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda _number, _frame: uplink.stop())
        threading.Thread(target=_until_daemon_goes, args=(uplink,), daemon=True).start()
        uplink.run()
    except Refused as refusal:
        log_event("error", "engine_refused", error=str(refusal))
        return EXIT_REFUSED
    log_event("info", "engine_stopped")
    return 0


def _until_daemon_goes(uplink: Uplink) -> None:
    while os.read(0, 4096):
        pass
    uplink.stop()


if __name__ == "__main__":
    sys.exit(main())
