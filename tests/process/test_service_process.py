"""A real daemon under a service manager: ready, alive and stopping are told, and children know nothing of it."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

from tests.process.daemon import application, run_daemon, wait_until
from tests.process.local import Local

CHILD = """\
import json, os, sys
for line in sys.stdin:
    action = json.loads(line)["action"]
    print("sees", sorted(name for name in os.environ if "NOTIFY" in name or "WATCHDOG" in name), file=sys.stderr, flush=True)
    print(json.dumps({"action": "status", "responseFor": action}), flush=True)
"""
WATCHDOG_S = 0.4


def test_a_service_manager_is_told_of_start_life_and_stop(local: Local, tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text(CHILD, "ascii")
    heard: list[str] = []
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as manager,
        application(local, tmp_path, "notified", shards=1) as app,
    ):
        manager.bind(str(tmp_path / "notify"))

        def has_heard(line: str, times: int = 1) -> bool:
            while True:
                try:
                    heard.extend(manager.recv(4096).decode("ascii").splitlines())
                except BlockingIOError:
                    return heard.count(line) >= times

        file = app.write_properties("worker", f"{sys.executable} child.py")
        environment = {
            **local.environment,
            "NOTIFY_SOCKET": str(tmp_path / "notify"),
            "WATCHDOG_USEC": str(int(WATCHDOG_S * 1e6)),
        }
        with run_daemon(tmp_path, "--properties", file, environment=environment) as daemon:
            wait_until(lambda: has_heard("READY=1"), "it is ready")
            daemon.wait_for("worker_started")
            daemon.wait_for("child_stderr", line="sees []")
            wait_until(lambda: has_heard("WATCHDOG=1", times=4), "it lives")
            daemon.stop()
            assert has_heard("STOPPING=1")
            assert not daemon.named("service_manager_not_notified")
    assert heard.index("READY=1") < heard.index("WATCHDOG=1") < heard.index("STOPPING=1")
    assert heard.count("READY=1") == heard.count("STOPPING=1") == 1
