"""`--reload`: the daemon is a process of its own, started again when a .py file changes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from signal import Signals
from typing import Final

import anyio
import click
from anyio import to_thread
from anyio.abc import Process

from kcl_daemon.cli.run import EXIT_SIGNAL, quiet_start
from kcl_daemon.cli.run_function import check_function
from kcl_daemon.cli.run_options import FunctionOptions

_LOOK_EVERY_S: Final = 0.5
_FILES_MOST: Final = 5_000
_PASSED_OVER: Final = frozenset({"__pycache__", "node_modules", "site-packages"})
_ENVIRONMENT: Final = "pyvenv.cfg"

Stamps = Mapping[str, tuple[int, int]]


def stamps_of(folders: list[Path]) -> Stamps:
    found: dict[str, tuple[int, int]] = {}
    for path in _python_files(folders):
        with suppress(OSError):  # an editor replaces it just now
            status = path.stat()
            found[str(path)] = (status.st_mtime_ns, status.st_size)
    return found


def _python_files(folders: list[Path]) -> Iterator[Path]:
    count = 0
    for folder in folders:
        for where, below, files in os.walk(folder):
            below[:] = [] if _ENVIRONMENT in files else [each for each in below if _is_users(each)]
            for each in files:
                if each.endswith(".py") and _ENVIRONMENT not in files:
                    yield Path(where, each)
                    count += 1
                    if count == _FILES_MOST:
                        return


def _is_users(folder: str) -> bool:
    return folder not in _PASSED_OVER and not folder.startswith(".")


def changed(before: Stamps, now: Stamps) -> list[str]:
    return sorted(path for path in {*before, *now} if before.get(path) != now.get(path))


def folders_of(target: str) -> list[Path]:
    here, (where, _, _) = Path.cwd(), target.rpartition(":")
    folder = Path(where).parent.resolve() if where.endswith(".py") else here
    return [here] if folder.is_relative_to(here.resolve()) else [here, folder]


def run_reloading(stream: str, target: str, options: FunctionOptions, log_words: list[str]) -> int:
    # The endpoints are ours: they outlive the daemons, which find them by our environment.
    left = replace(options, reload=False, local=False, shards=None, until_eof=True)
    words = [sys.executable, "-m", "kcl_daemon", "run", stream, target, *left.words(), *log_words]
    return anyio.run(_Reloading(words, target).run, quiet_start())


class _Reloading:
    def __init__(self, words: list[str], target: str) -> None:
        self._words = words
        self._target = target
        self._folders = folders_of(target)
        self._stamps = stamps_of(self._folders)
        self._process: Process | None = None
        self._stops = False
        self._is_changed = False

    async def run(self, numbers: tuple[Signals, ...]) -> int:
        code = 0
        with anyio.open_signal_receiver(*numbers) as signals:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._pass_on, signals)
                code = await self._run_once()
                while self._is_changed and not self._stops:
                    code = await self._run_once()
                tasks.cancel_scope.cancel()
        return code if code >= 0 else EXIT_SIGNAL - code

    async def _pass_on(self, signals: AsyncIterator[Signals]) -> None:
        """Each one: a second one ends the daemon at once."""
        async for number in signals:
            self._stops = True
            self._send(number)

    def _send(self, number: Signals) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _run_once(self) -> int:
        self._is_changed = False
        process = await anyio.open_process(
            self._words,
            stdin=subprocess.PIPE,  # it stops when this closes, even by SIGKILL of this process
            stdout=None,
            stderr=None,
            start_new_session=True,  # Ctrl-C comes from here, once
        )
        async with process, anyio.create_task_group() as tasks:
            self._process = process
            tasks.start_soon(self._stop_when_changed)
            await process.wait()
            self._process = None
            tasks.cancel_scope.cancel()
        return process.returncode or 0

    async def _stop_when_changed(self) -> None:
        """A change that cannot be imported is told, and changes nothing."""
        while True:
            await anyio.sleep(_LOOK_EVERY_S)
            now = await to_thread.run_sync(stamps_of, self._folders)
            files = changed(self._stamps, now)
            self._stamps = now
            if not files:
                continue
            checked = await to_thread.run_sync(partial(check_function, self._target, quiet=True))
            if self._stops:
                return
            if checked.problem:
                click.echo(f"not reloaded: {checked.problem}", err=True)
                continue
            names = ", ".join(short(each) for each in files[:3])
            click.echo(f"reloading: {names}{' and others' if len(files) > 3 else ''} changed", err=True)
            self._is_changed = True
            self._send(signal.SIGTERM)
            return


def short(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file
