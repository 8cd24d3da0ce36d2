"""Where documented commands run: a folder with the files that they name, beside the local endpoints.

The files are those of the documents themselves: properties file, processor and records of docs/start.md.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tests.documents.blocks import ROOT, Block, blocks_of

END_S = 150.0  # a hang; each command takes about a second of CPU
_SHELL = ("bash", "-euo", "pipefail", "-c")


def block_of(document: str, language: str, holding: str = "") -> str:
    """The first block of a language in a document that holds a text."""
    return next(
        block.body
        for block in blocks_of((ROOT / document).read_text("utf-8"), document)
        if block.language == language and holding in block.body
    )


def furnish(directory: Path, environment: Mapping[str, str]) -> None:
    """Write the files that documented commands name, and programs of the names they use."""
    (directory / "app.properties").write_text(block_of("docs/start.md", "properties"), "latin-1")
    (directory / "consumer.py").write_text(block_of("docs/start.md", "python"))
    (directory / "app.py").write_text(block_of("docs/lambda.md", "python"))
    (directory / "records.jsonl").write_text(block_of("docs/start.md", "json"))
    shutil.copy(ROOT / "clients" / "samples" / "project" / "records.txt", directory)
    (directory / "dead.jsonl").write_text(block_of("docs/failures.md", "json", '"applicationName"'))
    (directory / "logback.xml").write_text("<configuration><root level='INFO'/></configuration>")
    exports = (f"export {name}={shlex.quote(value)}\n" for name, value in environment.items())
    (directory / "local.env").write_text("".join(exports))
    programs = directory / ".programs"
    programs.mkdir()
    for name, words in (("kcl-daemon", "-m kcl_daemon"), ("python3", "")):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words} "$@"\n')
        program.chmod(0o755)


class Running:
    """A script that runs in its own process group; closed, nothing of it is left.

    Args:
        script: for bash.
        directory: furnished.
        environment: what leads to the local endpoints.
    """

    def __init__(self, script: str, directory: Path, environment: Mapping[str, str]) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "KCL_"))}
        path = os.pathsep.join((str(directory / ".programs"), kept.get("PATH", os.defpath)))
        python_path = os.pathsep.join(filter(None, (str(ROOT), kept.get("PYTHONPATH"))))
        self.output = ""
        self._is_over = False
        self._said = threading.Condition()
        self.process = subprocess.Popen(
            [*_SHELL, script],
            cwd=directory,
            env={**kept, "PATH": path, "PYTHONPATH": python_path, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._said:
                self.output += line
                self._said.notify()
        with self._said:
            self._is_over = True
            self._said.notify()

    def says(self, text: str) -> bool:
        """Wait until it has printed a text; False where it ended, or took too long."""
        with self._said:
            return (
                self._said.wait_for(lambda: text in self.output or self._is_over, END_S)
                and text in self.output
            )

    def end(self) -> int:
        """Wait for its end; the exit code."""
        code = self.process.wait(END_S)
        self._reader.join(END_S)
        return code

    def stop(self) -> None:
        """SIGTERM to all of it, as Ctrl-C at a terminal reaches all of it."""
        os.killpg(self.process.pid, signal.SIGTERM)

    def close(self) -> None:
        """Kill what is left."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(END_S)
        self._reader.join(END_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


def perform(block: Block, directory: Path, environment: Mapping[str, str]) -> None:
    """Run a block as its marker says; it must do what the marker promises."""
    running = Running(block.script, directory, environment)
    try:
        if block.until is None:
            code = running.end()
            assert code == 0, f"{block.where} ended with {code}:\n{running.output}"
        else:
            assert running.says(block.until), f"{block.where} did not say {block.until!r}:\n{running.output}"
            running.stop()
            running.end()
    finally:
        running.close()
