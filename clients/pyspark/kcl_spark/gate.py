"""Where the relays of other hosts come in: TCP with TLS, and a token before anything else is heard.

Owns that socket and the greeting: one line of JSON each way, then the line protocol. What comes through is served like
a relay of this host. Who knows neither the token nor the application's name is told no more than that.
"""

from __future__ import annotations

import hmac
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Any, Final

from kcl_spark.accepting import accept
from kcl_spark.control import Tell
from kcl_spark.greeting import PATIENCE_S, read_line, read_token, write_line
from kcl_spark.options import EngineOptions
from kcl_spark.refused import Refused
from kcl_spark.wire import keep_alive, parse_address, shut

_BACKLOG: Final = 1_024


class Gate:
    """Takes in connections until it is closed.

    Args:
        address: host and port to listen on.
        context: of TLS, with a certificate.
        expected: what a greeting must say, by name; `token` is compared in constant time.
        serve: called with a connection that may come in, in a thread of its own.
        tell: the log.
    """

    def __init__(
        self,
        address: tuple[str, int],
        context: ssl.SSLContext,
        expected: dict[str, str],
        serve: Callable[[socket.socket], None],
        tell: Tell,
    ) -> None:
        self._context = context
        self._expected = expected
        self._serve = serve
        self._tell = tell
        self._closed = False
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._socket = socket.create_server(address, family=family, backlog=_BACKLOG)
        threading.Thread(target=self._accept, name="kcl-gate", daemon=True).start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._socket.getsockname()[1])

    def close(self) -> None:
        """Take no more; what is served goes on."""
        self._closed = True
        shut(self._socket)
        self._socket.close()

    def _accept(self) -> None:
        accept(self._socket, self._admit, is_closed=lambda: self._closed, tell=self._tell)

    def _admit(self, plain: socket.socket, address: tuple[Any, ...]) -> None:
        peer = str(address[0])
        try:
            plain.settimeout(PATIENCE_S)
            keep_alive(plain)
            relay = self._context.wrap_socket(plain, server_side=True)
        except OSError as error:
            plain.close()
            self._tell("warning", "relay_refused", peer=peer, reason=str(error))
            return
        try:
            refusal = self._judge(read_line(relay))
            relay.sendall(write_line({"refused": refusal}))
            relay.settimeout(None)
        except (OSError, ValueError) as error:
            refusal = str(error)
        if refusal is not None:
            relay.close()
            self._tell("warning", "relay_refused", peer=peer, reason=refusal)
            return
        self._serve(relay)

    def _judge(self, greeting: dict[str, Any]) -> str | None:
        """Why somebody is not let in; None: welcome."""
        token = str(greeting.get("token", ""))
        if not hmac.compare_digest(token.encode(), self._expected["token"].encode()):
            return "the token is not that of this engine (sparkEngineTokenFile)"
        for name in ("application", "stream"):
            if greeting.get(name) != self._expected[name]:
                return f"the {name} of this engine is another: {self._expected[name]!r}"
        return None


def open_gate(options: EngineOptions, serve: Callable[[socket.socket], None], tell: Tell) -> Gate | None:
    """The gate that the options ask for; None: none.

    Raises:
        Refused: a file or the address cannot be used.
    """
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
    expected = {
        "token": read_token(options.token_file),
        "application": options.application,
        "stream": options.stream,
    }
    try:
        gate = Gate(parse_address(options.listen), context, expected, serve, tell)
    except OSError as error:
        raise Refused(f"sparkEngineListen: {options.listen}: {error}") from error
    tell("info", "gate_open", address=options.listen, port=gate.port)
    return gate
