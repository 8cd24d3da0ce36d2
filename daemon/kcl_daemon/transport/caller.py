"""Signed calls of one service: requests by operation, answers or event streams back, errors in the daemon's words.

Owns endpoints in use, signatures and the service's time. Must not know what the operations mean.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from kcl_daemon.aws.codes import service_error
from kcl_daemon.errors import AwsError, Unavailable
from kcl_daemon.ports import Clock
from kcl_daemon.transport.connection import ConnectionBroken
from kcl_daemon.transport.head import Head
from kcl_daemon.transport.refusals import OK, Refusal, TimeRefused, date_of, refusal
from kcl_daemon.transport.sign import CONTENT_TYPE, Signer
from kcl_daemon.transport.values import Access, Parameters, Target
from kcl_daemon.transport.wire import Streamed, Wire

T = TypeVar("T")

# What is read of an answer that refuses a stream, to learn why.
_REFUSAL_BYTES_MOST: Final = 64 * 1024
_MS_PER_S: Final = 1000
# The service's time is read from an answer now and then, not from each.
_DATED_EVERY_S: Final = 10.0
_PACKED: Final = "gzip"


def nobody_asks(_server_s: float) -> None:
    """The default of `on_date`."""


def _as_it_is(_body: bytes) -> None:
    """The default of `packs`."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A good answer whose body is still coming.

    Args:
        headers: names in lower case.
        pieces: the body in order, in pieces of any size; taken one at a time, and reading stops while none is taken.
            It ends with the body; Unavailable where it breaks off before, or nothing comes for too long.
    """

    headers: Mapping[str, str]
    pieces: AsyncIterator[bytes]


class Caller:
    """Makes calls. Never tries again by itself, with two exceptions that cannot do harm.

    These are a request that a kept connection swallowed, where it may be sent twice, and one whose signature had the
    wrong time: that is sent once more with the server's time, which then stays in use.

    Args:
        access: endpoints and credentials.
        clock: for signatures.
        wire: makes the way to an endpoint; it is kept for all calls to it.
        prefix: before the operation's name in `X-Amz-Target`.
        user_agent: who we say we are.
        not_found: what a missing resource is called here, such as StreamNotFound.
        content_type: of requests.
        means: what a refusal of some operation means beyond the common codes; None: nothing more.
        on_date: told now and then what time it is for the service, epoch seconds, as a good answer says.
        packs: makes the gzip of a body; it gives None where the body is to go as it is.
    """

    def __init__(
        self,
        access: Access,
        *,
        clock: Clock,
        wire: Callable[[Target], Wire],
        prefix: str,
        user_agent: str,
        not_found: type[AwsError],
        content_type: str = CONTENT_TYPE,
        means: Callable[[Refusal, str], AwsError | None] | None = None,
        packs: Callable[[bytes], bytes | None] = _as_it_is,
        on_date: Callable[[float], None] = nobody_asks,
    ) -> None:
        self._access = access
        self._clock = clock
        self._wire = wire
        self._prefix = prefix
        self._user_agent = user_agent
        self._not_found = not_found
        self._content_type = content_type
        self._means = means
        self._packs = packs
        self._routes: dict[Target, tuple[Signer, Wire]] = {}
        self._skew_s = 0.0
        self._on_date = on_date
        self._dated_s = -_DATED_EVERY_S

    async def call(
        self, operation: str, parameters: Parameters, read: Callable[[bytearray], T], *, once: bool = False
    ) -> T:
        """What `read` makes of the body of a good answer.

        Cancelled at any point: the connection is closed.

        Args:
            operation: such as `GetRecords`.
            parameters: the request.
            read: runs on the loop; its exceptions pass through.
            once: for writes: it is never sent again where it may have taken effect.

        Raises:
            AwsError: as `kcl_daemon.aws.codes` names the refusal; Unavailable where no answer came.
        """
        with self._told(operation):
            try:
                return await self._call(operation, parameters, read, once=once)
            except TimeRefused as wrong:
                self._set_time(wrong)
                return await self._call(operation, parameters, read, once=once)

    @asynccontextmanager
    async def open_stream(
        self, operation: str, parameters: Parameters, *, silence_s: float
    ) -> AsyncGenerator[Stream, None]:
        """An answer that is read while it comes (`SubscribeToShard`), on a connection or a stream of its own.

        That is closed when the context is left, in whatever way. Both the call and its pieces may be
        cancelled at any time.

        Args:
            operation: such as `SubscribeToShard`.
            parameters: the request.
            silence_s: how long nothing may come, before the answer and between its pieces, while somebody waits for
                it: a half-open connection ends so.

        Raises:
            AwsError: as for `call`, when the context is entered. Errors inside the stream are in its body, for the
                caller to read.
        """
        with self._told(operation):
            try:
                opening = self._opened(operation, parameters, silence_s)
                stream = await opening.__aenter__()
            except TimeRefused as wrong:
                self._set_time(wrong)
                opening = self._opened(operation, parameters, silence_s)
                stream = await opening.__aenter__()
        try:
            yield Stream(stream.head.headers, self._pieces(operation, stream))
        finally:
            await opening.__aexit__(None, None, None)

    async def aclose(self) -> None:
        """Close idle connections; those in use close when their call ends."""
        while self._routes:
            _, (_, wire) = self._routes.popitem()
            await wire.aclose()

    async def _call(
        self, operation: str, parameters: Parameters, read: Callable[[bytearray], T], *, once: bool
    ) -> T:
        signed = await self._signed(operation, parameters)

        def answered(head: Head, answer: bytearray) -> T:
            if head.status != OK:
                raise refusal(head, answer, signed_s=signed.epoch_s)
            self._tell_date(head)
            return read(answer)

        return await signed.wire.exchange(signed.head, signed.body, answered, once=once)

    @asynccontextmanager
    async def _opened(
        self, operation: str, parameters: Parameters, silence_s: float
    ) -> AsyncGenerator[Streamed, None]:
        signed = await self._signed(operation, parameters)
        async with signed.wire.stream(signed.head, signed.body, silence_s=silence_s) as stream:
            if stream.head.status != OK:
                said = bytearray()
                async for piece in stream.pieces:
                    said += piece
                    if len(said) > _REFUSAL_BYTES_MOST:
                        break
                raise refusal(stream.head, said, signed_s=signed.epoch_s)
            self._tell_date(stream.head)
            yield stream

    async def _pieces(self, operation: str, stream: Streamed) -> AsyncGenerator[bytes, None]:
        with self._told(operation):
            async for piece in stream.pieces:
                yield piece

    async def _signed(self, operation: str, parameters: Parameters) -> _Signed:
        target = await self._access.target(operation, parameters)
        keys = await self._access.keys()
        signer, wire = self._routes.get(target) or self._route(target)
        plain = msgspec.json.encode(parameters)
        packed = self._packs(plain)
        body, encoding = (plain, None) if packed is None else (packed, _PACKED)
        epoch_s = self._clock.wall_ms() / _MS_PER_S + self._skew_s
        head = signer.head(operation, body, keys, epoch_s=epoch_s, encoding=encoding)
        return _Signed(head, body, epoch_s, wire)

    def _route(self, target: Target) -> tuple[Signer, Wire]:
        signer = Signer(
            target, prefix=self._prefix, user_agent=self._user_agent, content_type=self._content_type
        )
        return self._routes.setdefault(target, (signer, self._wire(target)))

    def _tell_date(self, head: Head) -> None:
        now_s = self._clock.monotonic()
        if now_s - self._dated_s < _DATED_EVERY_S:
            return
        date_s = date_of(head)
        if date_s is not None:
            self._dated_s = now_s
            self._on_date(date_s)

    def _set_time(self, wrong: TimeRefused) -> None:
        self._skew_s = wrong.server_s - self._clock.wall_ms() / _MS_PER_S

    @contextmanager
    def _told(self, operation: str) -> Generator[None, None, None]:
        """What goes wrong inside, in the daemon's words."""
        try:
            yield
        except ConnectionBroken as broken:
            raise Unavailable(str(broken), operation=operation) from broken
        except Refusal as refused:
            particular = None if self._means is None else self._means(refused, operation)
            raise particular or service_error(
                refused.code,
                refused.message,
                operation=operation,
                not_found=self._not_found,
                status=refused.status,
            ) from refused


@dataclass(frozen=True, slots=True)
class _Signed:
    """A request that is ready to go."""

    head: bytes
    body: bytes
    epoch_s: float
    wire: Wire
