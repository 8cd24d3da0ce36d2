"""Asking a metadata server on loopback: `kcl_daemon.cpu.sources`."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import anyio
import pytest

from kcl_daemon.cpu.ecs import EcsCpu, metadata_client
from kcl_daemon.errors import CpuUnreadable
from tests.unit.cpu.machine import ecs


class _Handler(BaseHTTPRequestHandler):
    """The task metadata of one container, and some paths that misbehave."""

    go: threading.Event

    def do_GET(self) -> None:
        answers = {"/v4/id/stats": "stats.json", "/v4/id": "container.json", "/v4/id/task": "task.json"}
        if self.path == "/hangs":
            self.go.wait(120)
        elif self.path == "/garbage":
            self.wfile.write(b"not http\r\n\r\n")
        elif self.path == "/moved":
            self._answer(302, b"", location="/v4/id/stats")
        elif self.path in answers:
            self._answer(200, ecs(answers[self.path]))
        else:
            self._answer(404, b"no such container")

    def _answer(self, status: int, body: bytes, *, location: str = "") -> None:
        self.send_response(status)
        if location:
            self.send_header("Location", location)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class calls it so
        pass


@pytest.fixture
def server() -> Iterator[str]:
    go = threading.Event()
    handler = type("_Handler", (_Handler,), {"go": go})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}"
        go.set()
        listening.shutdown()
        thread.join()


@pytest.mark.anyio
async def test_a_container_is_measured_over_http(server: str) -> None:
    cpu = EcsCpu(f"{server}/v4/id", metadata_client())
    assert await cpu.sample() == pytest.approx(0.25 / 0.375 * 100)


@pytest.mark.anyio
async def test_proxies_are_not_asked(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert await metadata_client()(f"{server}/v4/id") == ecs("container.json")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("path", "problem"),
    [("/nothing", "status 404"), ("/moved", "status 302"), ("/garbage", "not http"), ("/hangs", "timed out")],
)
async def test_everything_but_an_answer_of_200_is_reported(server: str, path: str, problem: str) -> None:
    get = metadata_client(timeout_s=0.2 if path == "/hangs" else 60)
    with pytest.raises(CpuUnreadable, match=problem):
        await get(server + path)


@pytest.mark.anyio
async def test_nobody_listening_is_reported() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(CpuUnreadable, match="refused"):
            await metadata_client()(f"http://127.0.0.1:{bound.getsockname()[1]}/")


@pytest.mark.anyio
async def test_an_address_that_is_none_is_reported() -> None:
    with pytest.raises(CpuUnreadable, match="nonnumeric port: 'port'"):
        await metadata_client()("http://127.0.0.1:port/")


@pytest.mark.anyio
async def test_a_request_can_be_cancelled_while_the_server_is_silent(server: str) -> None:
    get = metadata_client(timeout_s=120)
    with anyio.fail_after(60):
        with anyio.move_on_after(0.05) as scope:
            await get(f"{server}/hangs")
    assert scope.cancelled_caught
