"""What a container's health check makes of the daemon's answers; asked over a real port."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from kcl_daemon.admin.probe import main, probe

ANSWERS = {"/livez": (200, b"ok\n"), "/readyz": (503, b"no leader\nfor 40 s\n")}


class _Answering(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status, body = ANSWERS[self.path]
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class' name
        pass


@contextmanager
def served() -> Generator[int]:
    with HTTPServer(("127.0.0.1", 0), _Answering) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("variable", ["KCL_ADMIN_PORT", "KCL_ADMINPORT", "kcl_adminPort"])
def test_the_answer_counts(variable: str) -> None:
    with served() as port:
        environment = {variable: str(port)}
        assert probe("livez", environment) == (True, "ok")
        assert probe("readyz", environment) == (False, "no leader\nfor 40 s")


def test_exit_code_and_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with served() as port:
        environment = {"KCL_ADMIN_PORT": str(port)}
        assert main([], environment) == 0
        assert main(["readyz"], environment) == 1
    assert capsys.readouterr().out == "ok\nno leader for 40 s\n"
    assert main(["healthz"], {}) == 2
    assert "usage" in capsys.readouterr().err


def test_a_daemon_that_serves_nothing_is_alive_while_it_runs() -> None:
    is_well, text = probe("livez", {})
    assert is_well
    assert "not set" in text


@pytest.mark.parametrize("port", ["0", "http", "70000"])
def test_a_port_that_cannot_be_asked_is_not_well(port: str) -> None:
    is_well, text = probe("livez", {"KCL_ADMIN_PORT": port})
    assert not is_well
    assert repr(port) in text


def test_a_probe_fails_without_a_server_or_without_an_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:  # takes the connection and says nothing
        port = str(server.getsockname()[1])
        assert not probe("livez", {"KCL_ADMIN_PORT": port}, timeout_s=0.1)[0]
    is_well, text = probe("livez", {"KCL_ADMIN_PORT": port})
    assert not is_well
    assert f"127.0.0.1 at port {port}" in text


def test_the_address_is_that_of_the_daemon() -> None:
    with served() as port:
        environment = {"KCL_ADMIN_PORT": f" {port}", "KCL_ADMIN_ADDRESS": "0.0.0.0"}
        assert probe("livez", environment) == (True, "ok")
        for address in ("127.0.0.9", "::1"):
            is_well, text = probe("livez", {**environment, "KCL_ADMIN_ADDRESS": address})
            assert not is_well
            assert f"no answer from {address} at port {port}" in text
    is_well, text = probe("livez", {**environment, "KCL_ADMIN_ADDRESS": "localhost"})
    assert (is_well, text) == (False, "KCL_ADMIN_ADDRESS = 'localhost' is no address that can be asked")


def test_a_service_of_kubernetes_is_no_port_of_ours() -> None:
    assert probe("livez", {"KCL_ADMIN_PORT": "tcp://10.0.0.1:80"})[0]


def test_it_starts_without_the_rest_of_the_daemon() -> None:
    code = (
        "import sys; from kcl_daemon.admin import probe;"
        "print(sorted({'anyio', 'boto3', 'click', 'structlog'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
