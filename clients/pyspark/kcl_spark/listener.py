"""Accepts relays: from this host on a Unix socket, from other hosts by TLS with a token.

One thread per shard.
"""

from __future__ import annotations

import hmac
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

from kcl_landing.control import EmitEvent, Refused
from kcl_landing.relays import accept_in_background, shut
from kcl_spark.session import EngineOptions
from kcl_spark.wire import PATIENCE_S, greeting, keep_alive, parse_address, read_line, write_line

_BACKLOG: Final = 1024


class TlsListener:
    """One JSON line each way, then the line protocol. The token is compared in constant time."""

    def __init__(
        self,
        address: tuple[str, int],
        context: ssl.SSLContext,
        expected: dict[str, str],
        serve: Callable[[socket.socket], None],
        log_event: EmitEvent,
    ) -> None:
        self._context = context
        self._expected = expected
        self._serve = serve
        self._log_event = log_event
        self._closed = False
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._socket = socket.create_server(address, family=family, backlog=_BACKLOG)
        accept_in_background(
            self._socket,
            self._admit,
            name="kcl-gate",
            is_closed=lambda: self._closed,
            log_event=log_event,
        )

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def close(self) -> None:
        self._closed = True
        shut(self._socket)
        self._socket.close()

    def _admit(self, plain: socket.socket, address: tuple[Any, ...]) -> None:
        peer = str(address[0])
        try:
            plain.settimeout(PATIENCE_S)
            keep_alive(plain)
            relay = self._context.wrap_socket(plain, server_side=True)
        except OSError as error:
            plain.close()
            self._log_event("warning", "relay_refused", peer=peer, reason=str(error))
            return
        try:
            refusal = self._judge(read_line(relay))
            relay.sendall(write_line({"refused": refusal}))
            relay.settimeout(None)
        except (OSError, ValueError) as error:
            refusal = str(error)
        if refusal is not None:
            relay.close()
            self._log_event("warning", "relay_refused", peer=peer, reason=refusal)
            return
        self._serve(relay)

    def _judge(self, said: dict[str, Any]) -> str | None:
        token = str(said.get("token", ""))
        if not hmac.compare_digest(token.encode(), self._expected["token"].encode()):
            return "the token is not that of this engine (sparkEngineTokenFile)"
        for name in ("application", "stream"):
            if said.get(name) != self._expected[name]:
                return f"the {name} of this engine is another: {self._expected[name]!r}"
        return None


def open_tls_listener(
    options: EngineOptions, serve: Callable[[socket.socket], None], log_event: EmitEvent
) -> TlsListener | None:
    if not options.listen:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(options.certificate, options.key or None)
    except OSError as error:
        raise Refused(
            f"sparkEngineCertificate, sparkEngineKey: {options.certificate}: {error}; both are PEM files"
        ) from error
    expected = greeting(options.token_file, options.application, options.stream)
    try:
        tls_listener = TlsListener(parse_address(options.listen), context, expected, serve, log_event)
    except OSError as error:
        raise Refused(f"sparkEngineListen: {options.listen}: {error}") from error
    log_event("info", "spark_engine_listening", address=options.listen, port=tls_listener.port)
    return tls_listener
