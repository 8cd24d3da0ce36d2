"""One stream of a connection of HTTP/2: what has come of its answer, until somebody takes it.

Owns waiting, and the time that the service may say nothing on this stream. Knows neither the connection's other
streams nor HTTP/2's frames.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable

import anyio

from kcl_daemon.transport.connection import ConnectionBroken
from kcl_daemon.transport.head import Head


class Unprocessed(ConnectionBroken):
    """Raised when the service did not look at a request: it may be sent again, over another connection."""


class Http2Stream:
    """A request that has been sent, and its answer.

    Args:
        number: of the stream.
        silence_s: how long nothing may come on it while somebody waits for it.
        on_taken: is told by how many bytes the stream's window may be opened again.
    """

    def __init__(self, number: int, silence_s: float, on_taken: Callable[[Http2Stream, int], None]) -> None:
        self.number = number
        self._silence_s = silence_s
        self._on_taken = on_taken
        self._head: Head | None = None
        self._pieces: list[bytes] = []
        self._counted = 0
        self._ended = False
        self._broken: ConnectionBroken | None = None
        self._stirred: anyio.Event | None = None

    async def answer(self) -> Head:
        """The head of the answer.

        Raises:
            ConnectionBroken: there was none.
        """
        while self._head is None:
            await self._wait()
        return self._head

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """The body piece by piece; what is not taken holds up this stream and no other.

        What came before a break is given before the break is told.

        Raises:
            ConnectionBroken: it did not come to its end, or nothing came for too long.
        """
        while True:
            while not self._pieces:
                if self._ended:
                    return
                await self._wait()
            piece = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
            counted, self._counted = self._counted, 0
            self._pieces.clear()
            self._on_taken(self, counted)
            yield piece

    # What the connection tells.

    def begin(self, head: Head) -> None:
        """The answer begins."""
        self._head = head
        self._stir()

    def take(self, data: bytes, counted: int) -> None:
        """A piece of the body.

        Args:
            data: the piece.
            counted: what it takes of the stream's window; padding counts.
        """
        self._counted += counted
        if data:
            self._pieces.append(data)
            self._stir()

    def end(self) -> None:
        """The body is complete."""
        self._ended = True
        self._stir()

    def fail(self, why: str, *, unprocessed: bool = False) -> None:
        """Nothing more will come. No effect on a stream that has ended or failed."""
        if self._broken is None and not self._ended:
            kind = Unprocessed if unprocessed and self._head is None else ConnectionBroken
            self._broken = kind(why, answered=self._head is not None)
            self._stir()

    async def _wait(self) -> None:
        """Until something has happened; raises where that was a break."""
        if self._broken is not None:
            raise self._broken
        self._stirred = anyio.Event()
        try:
            with anyio.fail_after(self._silence_s):
                await self._stirred.wait()
        except TimeoutError as error:
            answered = self._head is not None
            raise ConnectionBroken(f"nothing came for {self._silence_s:g} s", answered=answered) from error
        finally:
            self._stirred = None

    def _stir(self) -> None:
        if self._stirred is not None:
            self._stirred.set()
