"""The paths of the status page, and who may ask."""

from __future__ import annotations

import hmac
import json
from base64 import b64decode
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from http import HTTPStatus
from ipaddress import ip_address
from typing import Final, Protocol, TypeAlias

import msgspec
import orjson

from kcl_daemon.admin.page import assets, live_part, page
from kcl_daemon.admin.view import ThroughputHistory, not_ready
from kcl_daemon.capacity.figures import Capacity, capacity_text
from kcl_daemon.config.metrics_and_page import is_loopback
from kcl_daemon.ports import Clock
from kcl_daemon.telemetry.snapshot import Snapshot, SnapshotSource
from kcl_daemon.text import encodable

TEXT: Final = "text/plain; charset=utf-8"
OPEN_PATHS: Final = frozenset({"/livez", "/readyz"})
"""They need no token, and answer only yes or no."""
FORMAT: Final = 1
_LONG: Final = ("shards", "fleet")
_AT_ONCE: Final = 32
HTML: Final = "text/html; charset=utf-8"
JSON: Final = "application/json"
SLICE_S: Final = 0.002
"""Rendering pauses after this time."""
LIVE_EVERY_S: Final = 2.0
_PART_OF_A_CORE: Final = 0.001
"""A viewer's share of a core; slow pages reload less often."""
LIVE_AT_LEAST_EVERY_S: Final = 10.0
_RENDERINGS: Final = 3
_KEEP_S: Final = 1.0
# A viewer's poll may be this early and still count as a sample.
_EARLY_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class AdminRequest:
    """`path` has no query; a header is empty if it was not sent."""

    method: str
    path: str
    host: str = ""
    authorization: str = ""
    accept: str = ""


@dataclass(frozen=True, slots=True)
class AdminResponse:
    status: HTTPStatus
    body: bytes
    content_type: str = TEXT
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


def plain(status: HTTPStatus, words: str, **headers: str) -> AdminResponse:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return AdminResponse(status, f"{words}\n".encode(), headers=named)


@dataclass(frozen=True, slots=True)
class AdminAccess:
    address: str
    token: str | None = None

    def refusal(self, request: AdminRequest) -> AdminResponse | None:
        """None if the request is allowed."""
        if request.method not in {"GET", "HEAD"}:
            return plain(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are allowed", Allow="GET, HEAD")
        if not self._is_our_name(request.host):
            words = "this page can be opened only by IP address or as localhost"
            return plain(HTTPStatus.MISDIRECTED_REQUEST, words)
        if request.path not in OPEN_PATHS and not self.is_trusted(request):
            words = "a token is required: as bearer token, or as password with any user name"
            challenge = 'Basic realm="kcl-daemon", charset="UTF-8"'
            return plain(HTTPStatus.UNAUTHORIZED, words, WWW_Authenticate=challenge)
        return None

    def is_trusted(self, request: AdminRequest) -> bool:
        if self.token is None:
            return True
        shown = _shown_token(request.authorization)
        return hmac.compare_digest(shown.encode("utf-8", "replace"), self.token.encode())

    def _is_our_name(self, host: str) -> bool:
        """A foreign page could point its own name at this machine (DNS rebinding); it does not know a token."""
        if self.token is not None:
            return True
        name = host_name(host)
        if name in {"localhost", self.address}:
            return True
        try:
            return is_loopback(name)
        except ValueError:
            return False


def host_name(host: str) -> str:
    """Empty for an invalid header."""
    if host.startswith("["):
        inside, bracket, rest = host[1:].partition("]")
        if not bracket or (rest and not _is_port(rest)):
            return ""
        try:
            return str(ip_address(inside))
        except ValueError:
            return ""
    name, colon, port = host.partition(":")
    return "" if colon and not _is_port(f":{port}") else name.lower().removesuffix(".")


def _is_port(text: str) -> bool:
    return text.startswith(":") and text[1:].isascii() and text[1:].isdecimal()


def _shown_token(authorization: str) -> str:
    scheme, _, value = authorization.partition(" ")
    match scheme.lower():
        case "bearer":
            return value.strip()
        case "basic":
            try:
                user_and_password = b64decode(value.strip(), validate=True).decode()
            except ValueError:  # no base64, or no text
                return ""
            return user_and_password.partition(":")[2]
        case _:
            return ""


class NoStatus(ValueError): ...


@dataclass(frozen=True, slots=True)
class StatusDocument:
    """`format` rises when a field changes its meaning or goes; `throughput`: seconds ago and bytes a second by lease."""

    format: int
    snapshot: Snapshot
    throughput: dict[str, list[tuple[float, float]]] = field(
        default_factory=dict[str, list[tuple[float, float]]]
    )


def status_document(snapshot: Snapshot, history: ThroughputHistory, *, now_s: float) -> Iterator[bytes]:
    """`now_s` is on the history's clock."""
    names = (each.name for each in fields(snapshot) if each.name not in {*_LONG, "latencies"})
    short = {name: getattr(snapshot, name) for name in names}
    yield b'{"format":%d,"snapshot":%s' % (FORMAT, _dumped(short)[:-1])
    for name in _LONG:
        values = getattr(snapshot, name)
        has_lanes = name == "shards" and any(shard.lanes for shard in snapshot.shards)
        at_once = 1 if has_lanes else _AT_ONCE
        yield b',"%s":[' % name.encode()
        for start in range(0, len(values), at_once):
            some = values[start : start + at_once]
            yield (b"," if start else b"") + _dumped(some)[1:-1]
        yield b"]"
    yield b'},"throughput":{'
    for number, shard in enumerate(snapshot.shards):
        samples = [(round(ago_s, 1), round(value, 1)) for ago_s, value in history.of(shard.key, now_s)]
        yield (b"," if number else b"") + _dumped(encodable(shard.key)) + b":" + _dumped(samples)
    yield b"}}"


def _dumped(value: object) -> bytes:
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        plain = msgspec.to_builtins(value)
        return json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def status_from(data: bytes) -> StatusDocument:
    """Ignores unknown fields; NoStatus for another format."""
    try:
        status = msgspec.json.decode(data, type=StatusDocument)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise NoStatus(str(error)) from None
    if status.format != FORMAT:
        raise NoStatus(f"it has format {status.format}, this version reads {FORMAT}")
    return status


def capacity_json(capacity: Capacity | None, now_ms: int, **more: object) -> dict[str, object]:
    """As it is stored, and `workersWanted` and `ageSeconds` beside it; `more` overrides."""
    if capacity is None:
        return more
    age_s = max(0.0, (now_ms - capacity.at_ms) / 1000)
    said = orjson.loads(capacity_text(capacity))
    return {"workersWanted": capacity.wanted, "ageSeconds": round(age_s, 1), **said, **more}


class MetricsText(Protocol):
    @property
    def content_type(self) -> str: ...

    @property
    def body(self) -> bytes: ...


MetricsRenderer: TypeAlias = Callable[[str], Awaitable[MetricsText]]
"""Renders the format that the header `Accept` asks for."""


class AdminSite:
    def __init__(
        self,
        source: SnapshotSource,
        *,
        access: AdminAccess,
        clock: Clock,
        metrics: MetricsRenderer | None = None,
    ) -> None:
        self._source = source
        self._access = access
        self._clock = clock
        self._metrics = metrics
        self._history = ThroughputHistory()
        self._live: tuple[float, AdminResponse] | None = None
        self._render_s: deque[float] = deque(maxlen=_RENDERINGS)
        self._paths: dict[str, Callable[[AdminRequest], Awaitable[AdminResponse]]] = {
            "/": self._page,
            "/live": self._live_part,
            "/status.json": self._status,
            "/capacity.json": self._capacity,
            "/metrics": self._metrics_page,
            "/livez": self._livez,
            "/readyz": self._readyz,
        }

    async def sample(self) -> None:
        """Runs forever. It samples more often while somebody views the page."""
        while True:
            self._note()
            await self._clock.sleep(LIVE_EVERY_S)

    def _note(self) -> None:
        """Viewers' snapshots are samples, too."""
        now_s = self._clock.monotonic()
        if self._history.is_due(now_s, late_s=self._every_s):
            self._history.remember(self._source.now(), now_s)

    def _seen(self, snapshot: Snapshot) -> float:
        now_s = self._clock.monotonic()
        self._history.checked(now_s)
        if self._history.is_due(now_s, late_s=-_EARLY_S):
            self._history.remember(snapshot, now_s)
        return now_s

    async def answer(self, request: AdminRequest) -> AdminResponse:
        """Never raises."""
        refusal = self._access.refusal(request)
        if refusal is not None:
            return refusal
        path = self._paths.get(request.path)
        if path is None:
            return plain(HTTPStatus.NOT_FOUND, f"there is {', '.join(self._paths)}")
        return await path(request)

    async def _livez(self, _: AdminRequest) -> AdminResponse:
        return plain(HTTPStatus.OK, "alive")

    async def _readyz(self, request: AdminRequest) -> AdminResponse:
        reasons = not_ready(self._source.now())
        if not reasons:
            return plain(HTTPStatus.OK, "ready")
        lines = ["not ready", *reasons] if self._access.is_trusted(request) else ["not ready"]
        return plain(HTTPStatus.SERVICE_UNAVAILABLE, "\n".join(lines))

    async def _page(self, _: AdminRequest) -> AdminResponse:
        """Without waiting for the tables; the first reload has them."""
        snapshot = self._source.now()
        now_s = self._seen(snapshot)
        pieces = page(snapshot, self._history, now_s=now_s, every_s=self._every_s)
        headers = {
            "Content-Security-Policy": assets().policy,
            "X-Frame-Options": "DENY",
            "Cross-Origin-Opener-Policy": "same-origin",
        }
        return AdminResponse(HTTPStatus.OK, await self._joined(_encoded(pieces)), HTML, headers)

    async def _live_part(self, _: AdminRequest) -> AdminResponse:
        """Viewers share a rendering for 1 s."""
        kept = self._live
        if kept is not None and self._clock.monotonic() - kept[0] < _KEEP_S:
            return kept[1]
        snapshot = await self._source.asked()
        now_s = self._seen(snapshot)
        pieces = live_part(snapshot, self._history, now_s=now_s, every_s=self._every_s)
        answer = AdminResponse(HTTPStatus.OK, await self._joined(_encoded(pieces)), HTML)
        self._live = now_s, answer
        return answer

    async def _status(self, _: AdminRequest) -> AdminResponse:
        snapshot = await self._source.asked()
        now_s = self._seen(snapshot)
        pieces = status_document(snapshot, self._history, now_s=now_s)
        return AdminResponse(HTTPStatus.OK, await self._joined(pieces), JSON)

    async def _capacity(self, _: AdminRequest) -> AdminResponse:
        snapshot = await self._source.asked_capacity()
        if snapshot.capacity is None:
            return plain(HTTPStatus.SERVICE_UNAVAILABLE, "nothing is known yet: the leader has said nothing")
        return AdminResponse(HTTPStatus.OK, _dumped(capacity_json(snapshot.capacity, snapshot.at_ms)), JSON)

    async def _metrics_page(self, request: AdminRequest) -> AdminResponse:
        if self._metrics is None:
            return plain(HTTPStatus.NOT_FOUND, "there are no metrics here")
        text = await self._metrics(request.accept)
        return AdminResponse(HTTPStatus.OK, text.body, text.content_type)

    @property
    def _every_s(self) -> float:
        """By the quickest of the last renderings: the machine may have stood still."""
        seldom_s = min(self._render_s, default=0.0) / _PART_OF_A_CORE
        return min(max(LIVE_EVERY_S, seldom_s), LIVE_AT_LEAST_EVERY_S)

    async def _joined(self, pieces: Iterable[bytes]) -> bytes:
        done: list[bytes] = []
        spent_s, began_s = 0.0, self._clock.monotonic()
        for piece in pieces:
            done.append(piece)
            slice_s = self._clock.monotonic() - began_s
            if slice_s >= SLICE_S:
                spent_s += slice_s
                await self._clock.sleep(0)
                began_s = self._clock.monotonic()
        self._render_s.append(spent_s + self._clock.monotonic() - began_s)
        return b"".join(done)


def _encoded(pieces: Iterable[str]) -> Iterable[bytes]:
    return (piece.encode() for piece in pieces)
