"""Completion in the shells themselves: each is started on a terminal, and Tab is pressed."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sysconfig
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from kcl_landing.control import monotonic_s

pytestmark = pytest.mark.timeout(200)

WITHIN_S: Final = 60
PATH: Final = os.pathsep.join((sysconfig.get_path("scripts"), os.environ["PATH"]))
# How each is started without the user's files, and what docs/editors.md tells to put there.
SHELLS: Final = {
    "bash": (("bash", "--noprofile", "--norc", "-i"), 'eval "$(kcl-daemon completion bash)"'),
    "zsh": (
        ("zsh", "-f", "-i"),
        'bindkey -e; autoload -Uz compinit && compinit -u -D; eval "$(kcl-daemon completion zsh)"',
    ),
    "fish": (("fish", "--no-config", "-i"), "kcl-daemon completion fish | source"),
}
TYPED: Final = {
    "kcl-daemon che": "kcl-daemon check",
    "kcl-daemon leases lis": "kcl-daemon leases list",
    "kcl-daemon --log-fo": "kcl-daemon --log-format",
    "kcl-daemon init --language sp": "kcl-daemon init --language spark",
    "kcl-daemon check app.pro": "kcl-daemon check app.properties",
    "kcl-daemon check --properties app.pro": "kcl-daemon check --properties app.properties",
}


class Terminal:
    def __init__(self, master: int) -> None:
        self._master = master
        self._seen = ""

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def until(self, pattern: str) -> re.Match[str]:
        """What the shell has printed since the last call."""
        ends_s = monotonic_s() + WITHIN_S
        while (found := re.search(pattern, self._seen)) is None:
            ready, _, _ = select.select([self._master], [], [], max(0, ends_s - monotonic_s()))
            assert ready, f"not within {WITHIN_S} s: {pattern} in {self._seen!r}"
            self._seen += os.read(self._master, 65_536).decode(errors="replace")
        self._seen = self._seen[found.end() :]
        return found


@contextmanager
def shell(name: str, folder: Path) -> Generator[Terminal]:
    words, setup = SHELLS[name]
    master, slave = pty.openpty()
    environment = {
        "PATH": PATH,
        "HOME": str(folder),
        "TERM": "xterm",
        "LC_ALL": "C.UTF-8",
        "PS1": ">",
        "XDG_RUNTIME_DIR": str(folder),
    }
    # The leader of a session gets the first terminal that it opens as its own, which fish wants.
    opened = ("sh", "-c", f'exec "$@" <>{os.ttyname(slave)} >&0 2>&0', "sh", *words)
    with subprocess.Popen(opened, cwd=folder, env=environment, start_new_session=True) as process:
        try:
            terminal = Terminal(master)
            # In two parts, so that the echo of what was typed is not taken for the answer.
            terminal.type(f"{setup}; echo re''ady\r")
            terminal.until("ready")
            yield terminal
        finally:
            process.kill()
            os.close(master)
            os.close(slave)


@pytest.mark.parametrize("name", SHELLS)
def test_tab_completes_commands_options_values_and_files(name: str, tmp_path: Path) -> None:
    if shutil.which(name) is None:
        pytest.skip(f"NOT RUN: {name} is not installed (Debian: apt-get install {name})")
    (tmp_path / "app.properties").touch()
    with shell(name, tmp_path) as terminal:
        for typed, completed in TYPED.items():
            # The line becomes a text that is printed: Ctrl-A goes to its begin, Ctrl-E to its end.
            terminal.type(f"{typed}\t\x01printf '[%s]\\n' 'is:\x05'\r")
            # zsh takes the blank back where another word than the next is typed.
            assert terminal.until(r"\[is:([^\]\r\n]*)\]")[1].rstrip() == completed
