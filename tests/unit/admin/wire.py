"""Both ends of one connection to the server, in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import anyio
import h11
from anyio.abc import ByteStream, SocketAttribute


class Wire(ByteStream):
    """The server's end as a stream, the caller's as `say`, `finish` and `heard`.

    Attributes:
        heard: all that the server has sent.
        stuck: whether the caller reads nothing any more.
        closed: whether the server has closed it.
    """

    def __init__(self, *said: bytes, finish: bool = False, peer: str | None = None) -> None:
        self._peer = peer
        self._to_server, self._from_caller = anyio.create_memory_object_stream[bytes](math.inf)
        self.heard = b""
        self.stuck = False
        self.closed = False
        for piece in said:
            self.say(piece)
        if finish:
            self.finish()

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:  # Any: as anyio has it
        peer = self._peer
        return {} if peer is None else {SocketAttribute.remote_address: lambda: (peer, 50_000)}

    def say(self, piece: bytes) -> None:
        self._to_server.send_nowait(piece)

    def finish(self) -> None:
        self._to_server.close()

    async def receive(self, max_bytes: int = 65536) -> bytes:
        piece = await self._from_caller.receive()
        assert len(piece) <= max_bytes
        return piece

    async def send(self, item: bytes) -> None:
        if self.stuck:
            await anyio.sleep_forever()
        self.heard += item

    async def send_eof(self) -> None:
        pass

    async def aclose(self) -> None:
        self.closed = True
        self._to_server.close()
        self._from_caller.close()

    def answers(self, *methods: str) -> list[tuple[int, dict[str, str], bytes]]:
        """What was heard, as a client understands it: status, headers, body; a request of each method was sent."""
        client = h11.Connection(h11.CLIENT)
        client.receive_data(self.heard)
        found: list[tuple[int, dict[str, str], bytes]] = []
        for method in methods or ("GET",):
            client.send(h11.Request(method=method, target="/", headers=[("Host", "x")]))
            client.send(h11.EndOfMessage())
            head = client.next_event()
            assert isinstance(head, h11.Response), head
            body = b""
            while isinstance(event := client.next_event(), h11.Data):
                body += bytes(event.data)
            assert isinstance(event, h11.EndOfMessage), event
            headers = {name.decode().lower(): value.decode() for name, value in head.headers}
            found.append((head.status_code, headers, body))
            if client.our_state is h11.DONE and client.their_state is h11.DONE:
                client.start_next_cycle()
        return found
