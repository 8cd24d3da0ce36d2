"""A document as its reader follows it: each block in order, in one empty folder, with what `pip install` has installed."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shlex
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from tests.documents.blocks import Block

END_S = 100.0  # a hang; nothing in a story takes so long
_LINES, _COLUMNS = 50, 200
_PORT = "8080"
_STYLE = re.compile(r"\x1b\[[\d;?]*[A-Za-z]|\r")


class Terminal:
    """A block that runs in a terminal of its own; closed, nothing of it is left."""

    def __init__(self, script: str, folder: Path, environment: Mapping[str, str]) -> None:
        self._text = ""
        self._is_over = False
        self._said = threading.Condition()
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", _LINES, _COLUMNS, 0, 0))
        self._process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=folder,
            env=environment,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        with suppress(OSError):  # that is how the end of all that writes shows itself
            while piece := os.read(self._ours, 65536):
                with self._said:
                    self._text += piece.decode("utf-8", "replace")
                    self._said.notify()
        with self._said:
            self._is_over = True
            self._said.notify()

    @property
    def printed(self) -> str:
        """What a reader sees, without colours."""
        return _STYLE.sub("", self._text)

    def shows(self, pattern: str) -> bool:
        """Wait until it has printed this; False where it ended, or took too long."""
        seen = re.compile(pattern, re.MULTILINE)
        with self._said:
            self._said.wait_for(lambda: seen.search(self.printed) or self._is_over, END_S)
        return seen.search(self.printed) is not None

    def end(self) -> int:
        code = self._process.wait(END_S)
        self._reader.join(END_S)
        return code

    def interrupt(self) -> None:
        """Ctrl-C, and wait for the end."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGINT)
        self.end()

    def close(self) -> None:
        """Kill what is left."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self.end()
        os.close(self._ours)


def programs(folder: Path) -> None:
    """A `python3`, which makes the environment of the story: the one of the tests."""
    program = folder / "python3"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    program.chmod(0o755)


class Story:
    """Runs the blocks of one document.

    Args:
        folder: empty.
        environment: beside PATH; what is installed in `.venv` of the folder comes first there.
        apart: a folder for what is no matter of the reader.
        port: free; in place of the one that documents name.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str], apart: Path, port: int) -> None:
        self._port = str(port)
        self._folder = folder
        own = apart / "programs"
        own.mkdir()
        programs(own)
        path = os.pathsep.join((str(folder / ".venv" / "bin"), str(own), os.defpath))
        self._environment = {**environment, "PATH": path}
        self._terminals: dict[str, Terminal] = {}
        self._last: Terminal | None = None

    def perform(self, block: Block) -> None:
        """Do what the marker says, or write the file that the block is."""
        block = replace(block, body=block.body.replace(_PORT, self._port))
        if block.file is not None:
            (self._folder / block.file).write_text(block.body, "utf-8")
        elif block.is_printed:
            self._look(block)
        elif block.runs:
            self._run(block)

    def _run(self, block: Block) -> None:
        number = block.terminal
        if number is not None and number in self._terminals:
            self._terminals[number].interrupt()
            self._terminals.pop(number).close()
        terminal = Terminal(block.script, self._folder, self._environment)
        self._keep(number, terminal)
        if block.until is None:
            code = terminal.end()
            assert code == 0, f"{block.where} ended with {code}:\n{terminal.printed}"
        else:
            said = terminal.shows(re.escape(block.until))
            assert said, f"{block.where} did not print {block.until!r}:\n{terminal.printed}"
            if number is None:
                terminal.interrupt()

    def _keep(self, number: str | None, terminal: Terminal) -> None:
        if number is not None:
            self._terminals[number] = terminal
            return
        if self._last is not None:
            self._last.close()
        self._last = terminal

    def _look(self, block: Block) -> None:
        terminal = self._last if block.terminal is None else self._terminals[block.terminal]
        assert terminal is not None, f"{block.where}: nothing has run before"
        for line in block.body.splitlines():
            parts = (re.escape(part) for part in line.split("..."))
            shown = terminal.shows(f"^{'.*'.join(parts)}[ \t]*$")
            assert shown, f"{block.where} was not printed: {line!r}\n{terminal.printed}"

    def close(self) -> None:
        """As a reader does at the end: Ctrl-C everywhere, the last terminal first."""
        for terminal in reversed(self._terminals.values()):
            terminal.interrupt()
            terminal.close()
        if self._last is not None:
            self._last.close()
