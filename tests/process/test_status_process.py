"""`kcl-daemon top` on a terminal of its own, and how little a daemon without the page loads."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import termios
from dataclasses import replace
from threading import Thread
from typing import Final

import pytest

from tests.process.daemon import wait_until
from tests.unit.admin.serving import serving
from tests.unit.admin.stage import READY, Standing

pytestmark = pytest.mark.timeout(300)

LINES, COLUMNS = 60, 160
LOADED_LATER: Final = ("h11", "kcl_daemon.cli.status", "kcl_daemon.admin.server", "kcl_daemon.admin.page")


def test_top_shows_what_changes_until_it_is_interrupted() -> None:
    source = Standing(READY)
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (LINES, COLUMNS))
    said = bytearray()

    def read() -> None:
        try:
            while piece := os.read(ours, 65536):
                said.extend(piece)
        except OSError:  # the other end is closed
            return

    with serving(source) as made:
        command = [sys.executable, "-m", "kcl_daemon", "top", "--url", made.url, "--every", "0.5"]
        with subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm"}
        ) as process:
            os.close(theirs)
            reader = Thread(target=read)
            reader.start()
            try:
                wait_until(lambda: b"0 failing, 0 stalled" in said, "the first look")
                (shard,) = source.snapshot.shards
                source.snapshot = replace(source.snapshot, shards=(replace(shard, stalled=True),))
                wait_until(lambda: b"0 failing, 1 stalled" in said, "what has changed")
                process.send_signal(signal.SIGINT)
                assert process.wait(60) == 0
            finally:
                process.kill()
                reader.join(60)
                os.close(ours)
    assert b"\x1b[?1049h" in said, "it has a screen of its own"
    assert b"\x1b[?1049l" in said, "and leaves it"
    assert b"\x1b[1;31m" in said or b"\x1b[31m" in said, (
        "what stands still is red, though a daemon loads no rich"
    )
    assert b"Traceback" not in said


def test_a_daemon_without_a_page_loads_nothing_of_it() -> None:
    code = (
        f"import sys, kcl_daemon.cli.run; print([name for name in {LOADED_LATER!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "[]\n"
