"""A real port: its beginning, its end, and what happens where it cannot be had."""

from __future__ import annotations

import gc
import os
import resource
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import anyio.lowlevel
import pytest

from kcl_daemon.admin.probe import probe
from kcl_daemon.admin.server import RETRY_S, SERVER_LIMITS, served, token_of, url_of
from kcl_daemon.config.metrics_and_page import AdminSettings
from kcl_daemon.errors import ConfigurationError
from kcl_daemon.telemetry.snapshot import Snapshot
from tests.unit.admin.serving import serving
from tests.unit.admin.stage import READY, SNAPSHOT, Standing
from tests.unit.fakes import LoopClock, MemoryLog

TOKEN = "0123456789abcdef"


def test_the_page_is_there_and_gone_at_the_end() -> None:
    with serving(Standing(READY)) as made:
        status, headers, body = made.get("/")
        assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert body.startswith(b"<!DOCTYPE html>")
        assert made.get("/readyz")[0] == 200
        assert made.get("/", Host="evil.example")[0] == 421
        port = made.port
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=60)


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this machine has no IPv6")
def test_all_addresses_are_those_of_both_families() -> None:
    with serving(Standing(READY), AdminSettings(address="::", token=TOKEN)) as made:
        for address in ("127.0.0.1", "::1"):
            with socket.create_connection((address, made.port), timeout=60):
                pass
            environment = {"KCL_ADMIN_PORT": str(made.port), "KCL_ADMIN_ADDRESS": address}
            assert probe("livez", environment) == (True, "alive")
        port = made.port
    for address in ("127.0.0.1", "::1"):
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((address, port), timeout=60)


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this machine has no IPv6")
def test_the_port_on_ipv6_is_freed_while_the_one_on_ipv4_is_taken() -> None:
    """Where another program has the port on IPv4, it is free on IPv6 while this one waits for it."""
    log = MemoryLog()

    async def main(port: int) -> None:
        async with served(AdminSettings(port, "::", TOKEN), Standing(), clock=LoopClock(), log=log):
            with anyio.fail_after(90):
                while "status_page_not_served" not in log.events():
                    await anyio.lowlevel.checkpoint()
            with socket.create_server(("::1", port), family=socket.AF_INET6):
                pass

    with socket.create_server(("127.0.0.1", 0)) as holder:
        anyio.run(main, holder.getsockname()[1])
    assert log.events() == ["status_page_not_served"]


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.9", "0.0.0.0"])
def test_a_probe_finds_the_address(address: str) -> None:
    with serving(Standing(READY), AdminSettings(address=address, token=TOKEN)) as made:
        environment = {"KCL_ADMIN_PORT": str(made.port), "KCL_ADMIN_ADDRESS": address}
        assert probe("livez", environment) == (True, "alive")


def test_many_callers_at_once_are_answered() -> None:
    with serving(Standing()) as made, ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(made.get, ["/status.json"] * 64))
    assert [status for status, _, _ in answers] == [200] * 64


def test_a_request_is_answered_beside_the_most_idle_connections() -> None:
    with serving(Standing()) as made, ExitStack() as idle:
        for _ in range(SERVER_LIMITS.max_connections + 1):
            idle.enter_context(socket.create_connection(("127.0.0.1", made.port), timeout=90))
        assert made.get("/livez")[0] == 200


def test_without_a_port_nothing_happens() -> None:
    log = MemoryLog()

    async def main() -> None:
        async with served(AdminSettings(), Standing(), clock=LoopClock(), log=log):
            pass

    anyio.run(main)
    assert log.lines == []


def test_a_port_that_is_taken_is_reported_once_and_had_when_it_is_free() -> None:
    """As while one worker replaces another. The worker goes on meanwhile."""
    log = MemoryLog()

    class Hasty(LoopClock):
        pauses = 0

        async def sleep(self, seconds: float) -> None:
            if seconds == RETRY_S:
                self.pauses += 1
                if self.pauses == 2:
                    holder.close()
            await anyio.lowlevel.checkpoint()

    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]

        async def main() -> None:
            settings = AdminSettings(port=port)
            async with served(settings, Standing(), clock=Hasty(), log=log):
                with anyio.fail_after(90):
                    while "status_page_served" not in log.events():
                        await anyio.lowlevel.checkpoint()

        anyio.run(main)
    assert log.events() == ["status_page_not_served", "status_page_served"]
    _, _, fields = log.lines[0]
    assert fields["port"] == port
    assert "the worker continues" in str(fields["advice"])


def test_a_process_that_can_open_no_more_files_goes_on_and_serves_when_it_can_again() -> None:
    log = MemoryLog()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    class Hasty(LoopClock):
        async def sleep(self, seconds: float) -> None:
            await anyio.sleep(0 if seconds == RETRY_S else seconds)

    async def wait_for(event: str, times: int) -> None:
        with anyio.fail_after(90):
            while log.events().count(event) < times:  # noqa: ASYNC110 - a log has no events to wait for
                await anyio.sleep(0.001)

    async def main() -> None:
        async with served(AdminSettings(port=0), Standing(), clock=Hasty(), log=log):
            await wait_for("status_page_served", 1)
            port = urlsplit(str(log.lines[0][2]["url"])).port
            assert port is not None
            gc.collect()  # else descriptors that tests before have dropped may become free below the limit
            caller = socket.socket()
            next_file = os.dup(caller.fileno())
            os.close(next_file)
            resource.setrlimit(resource.RLIMIT_NOFILE, (next_file, hard))
            try:
                caller.setblocking(False)
                caller.connect_ex(("127.0.0.1", port))
                await wait_for("status_page_not_served", 1)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
                caller.close()
            await wait_for("status_page_served", 2)

    anyio.run(main)
    assert "Too many open files" in str(log.lines[1][2]["error"])


def test_a_fault_in_sampling_does_not_end_the_daemon() -> None:
    class Faulty(Standing):
        def now(self) -> Snapshot:
            raise ValueError("of ours")

    with serving(Faulty()) as made:
        assert made.get("/livez")[0] == 200
        assert made.get("/readyz")[0] == 500
        assert made.get("/")[0] == 500
        assert set(made.log.events("error")) == {"status_page_not_sampled", "status_page_failed"}


def test_a_token_is_asked_for_where_there_is_one(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f" {TOKEN}\n")
    for settings in (AdminSettings(token=TOKEN), AdminSettings(token_file=str(file))):
        with serving(Standing(SNAPSHOT), settings) as made:
            assert made.get("/")[0] == 401
            assert made.get("/", Authorization=f"Bearer {TOKEN}", Host="pod-7")[0] == 200
            assert made.get("/readyz", Host="10.0.0.7")[2] == b"not ready\n"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read: No such file"),
        (b"", "contains no valid token: 16 to 256"),
        (b"\xff" * 20, "cannot be read"),
    ],
)
def test_a_file_without_a_token_ends_the_start(tmp_path: Path, content: bytes | None, words: str) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)

    async def main() -> None:
        await token_of(AdminSettings(port=0, token_file=str(file)))

    with pytest.raises(ConfigurationError, match=words) as caught:
        anyio.run(main)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80/"),
        ("0.0.0.0", "http://127.0.0.1:80/"),
        ("::1", "http://[::1]:80/"),
        ("::", "http://127.0.0.1:80/"),
        ("10.1.2.3", "http://10.1.2.3:80/"),
    ],
)
def test_the_url_of_an_address_leads_there_from_this_machine(address: str, url: str) -> None:
    assert url_of(address, 80) == url
