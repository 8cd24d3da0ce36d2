from __future__ import annotations

import re
import tempfile
from abc import abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager as Opened
from contextlib import asynccontextmanager, closing, nullcontext
from dataclasses import dataclass
from threading import Lock
from typing import Any, ClassVar, Final, Self, TypeVar

from anyio import to_thread
from botocore.config import Config

from kcl_daemon.aws.access import SDK_ERRORS, CallLimiter, translated
from kcl_daemon.aws.session import Services, refused
from kcl_daemon.config.dead_letters import OVERFLOW_FORM, Destination, KeepsData, Overflow, WithData
from kcl_daemon.config.services import Endpoints
from kcl_daemon.errors import AwsError, DeadLetterTooLarge, InvalidRequest
from kcl_daemon.ports import DeadLetters
from kcl_daemon.records.dead_letter import DeadLetter
from kcl_daemon.records.letters import BadLetter, BadPlace, LetterSource, StoredLetter, parse_letter

T = TypeVar("T")
Client = Any
"""Any: the SDK has no types for these services."""
KIB: Final = 1024
MIB: Final = 1024**2
_CALLS: Final = 8
# A letter has up to 14 MB, which the SDK sends within the time to connect.
_WRITING: Final = Config(max_pool_connections=_CALLS, connect_timeout=20, read_timeout=20)
# Holds no lease: a call may be repeated and take its time.
_READING: Final = Config(
    retries={"total_max_attempts": 6, "mode": "standard"}, read_timeout=60, max_pool_connections=_CALLS
)
# Below this nothing is too large unless the service says so in words that we know.
USUAL_LIMIT: Final = 256 * KIB
_TOO_LARGE: Final = re.compile(
    r"(?i)shorter than|too (long|large)|larger than|length less than|at most \d+ bytes|exceed"
)


@dataclass
class LetterService:
    endpoints: Endpoints
    name: str
    region_name: str | None = None
    address: str | None = None
    regional: str | None = None
    reads: bool = False
    not_found: type[AwsError] = InvalidRequest

    def __post_init__(self) -> None:
        self._lock = Lock()
        self._limiter = CallLimiter(_CALLS, not_found=self.not_found)
        self._client: Client = None

    def _connect(self) -> Client:
        with self._lock:
            if self._client is None:
                self._client = self._made()
            return self._client

    def _made(self) -> Client:
        address, region_name = self.address, self.region_name
        try:
            services = Services(self.endpoints)
            if self.regional is not None and region_name in {None, services.region_name("kinesis")}:
                address = self.regional
            config = _READING if self.reads else _WRITING
            return services.client_for(self.name, region_name=region_name, address=address, config=config)
        except (*SDK_ERRORS, ValueError) as error:
            raise refused(error) from error

    async def run(self, operation: str, call: Callable[[Client], T]) -> T:
        return await self._limiter.run(operation, lambda: call(self._connect()))

    def ask(self, call: Callable[[Client], T]) -> T:
        with closing(self._connect()) as client:
            try:
                return call(client)
            except SDK_ERRORS as error:
                raise translated(error, operation="", not_found=InvalidRequest) from error

    async def __aenter__(self) -> Self:
        if not self.reads:
            await to_thread.run_sync(self._connect, abandon_on_cancel=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._client is not None:
            self._client.close()


class LimitedLetters(Destination):
    """`most_bytes`: of the service; its queue, topic or stream may have a lower limit."""

    operation: ClassVar[str]
    most_bytes: ClassVar[int] = MIB

    @abstractmethod
    def service(self, endpoints: Endpoints, *, reads: bool = False) -> LetterService: ...

    @abstractmethod
    def send(self, client: Client, dead_letter: DeadLetter, line: bytes) -> object: ...

    @abstractmethod
    def ask_limit(self, client: Client) -> int: ...

    def largest_letter(self, endpoints: Endpoints) -> float:
        return self.service(endpoints).ask(self.ask_limit)

    @asynccontextmanager
    async def writer(self, endpoints: Endpoints, overflow: Overflow | None) -> AsyncGenerator[DeadLetters]:
        large: Opened[KeepsData | None] = nullcontext()
        if overflow is not None:
            large = overflow.writer(endpoints, None)
        async with large as keeps, self.service(endpoints) as service:
            yield _Limited(self, service, keeps)


@dataclass(frozen=True)
class _Limited:
    _to: LimitedLetters
    _service: LetterService
    _overflow: KeepsData | None

    async def store(self, dead_letter: DeadLetter) -> None:
        refusal = await self._refusal(dead_letter, dead_letter.line())
        if refusal is not None and self._overflow is not None:
            data_at = await self._overflow.keep(dead_letter)
            refusal = await self._refusal(dead_letter, dead_letter.line(data_at))
        if refusal is not None:
            raise DeadLetterTooLarge(refusal)

    async def _refusal(self, dead_letter: DeadLetter, line: bytes) -> str | None:
        """None: it was sent."""
        to = self._to
        why = f"the limit of the service is {to.most_bytes} bytes"
        if len(line) <= to.most_bytes:
            try:
                await self._service.run(to.operation, lambda client: to.send(client, dead_letter, line))
            except InvalidRequest as error:
                by_size = self._overflow is not None and len(line) > USUAL_LIMIT
                if not by_size and not _TOO_LARGE.search(str(error)):
                    raise
                why = str(error)
            else:
                return None
        advice = f"set deadLetterOverflow = {OVERFLOW_FORM}, or use s3: or file: as deadLetterDestination"
        if self._overflow is not None:
            advice = "raise the limit of deadLetterDestination, or use s3: or file:"
        return f"a letter of {len(line)} bytes is too large for {to.address}: {why}; {advice}"


def plain_text(line: bytes) -> str:
    """Without two characters that queues refuse."""
    return line.decode().replace("\ufffe", r"\ufffe").replace("\uffff", r"\uffff")


def fifo_fields(address: str, dead_letter: DeadLetter) -> Mapping[str, str]:
    """A FIFO queue or topic groups by shard and drops repetitions within five minutes."""
    if not address.endswith(".fifo"):
        return {}
    return {"MessageGroupId": dead_letter.shard_id, "MessageDeduplicationId": dead_letter.key}


def chunks(items: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    return (items[start : start + most] for start in range(0, len(items), most))


class SpooledLetters(LetterSource):
    """Lines that cannot be read a second time, in a file without a name."""

    def __init__(self, service: LetterService, with_data: WithData) -> None:
        self._service = service
        self._with_data = with_data
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self._end = 0

    def keep(self, line: bytes, place: str, more: object = None) -> StoredLetter | BadPlace:
        try:
            head = parse_letter(line, place).head((self._end, len(line), more))
        except BadLetter as bad:
            return BadPlace(place, str(bad))
        self._file.seek(self._end)
        self._file.write(line)
        self._end += len(line)
        return head

    async def read(self, head: StoredLetter) -> DeadLetter:
        assert isinstance(head.handle, tuple), "made by `keep`"
        start, length, _ = head.handle
        self._file.seek(start)
        return await self._with_data(parse_letter(self._file.read(length), head.place))

    def close(self) -> None:
        self._file.close()
