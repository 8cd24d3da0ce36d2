"""Which program is started, and what is said when none can be."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kcl_daemon.children.start import find_program
from kcl_daemon.errors import ChildStartFailed
from kcl_daemon.ports import StreamRef
from tests.process.children.support import (
    SHARD,
    children_of,
    descriptors_in_use,
    drained,
    open_descriptors,
)

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]


def script(path: Path, text: str, mode: int = 0o755) -> Path:
    """A file to be started."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def binary_without_loader(path: Path) -> Path:
    """A program built for a C library that is not there."""
    true = Path("/bin/true").read_bytes()
    loader = re.search(rb"/lib[^\0]*/ld-[^\0]*", true)
    assert loader is not None
    path.write_bytes(true.replace(loader[0], b"/none".ljust(len(loader[0]), b"e"), 1))
    path.chmod(0o755)
    return path


async def output_of(*argv: str) -> bytes:
    """What a program writes to stdout."""
    async with children_of(argv) as children:
        child = await children.start(SHARD)
        await child.close_stdin()
        return await drained(child)


async def failure_of(*argv: str) -> str:
    """Why a program cannot be started; nothing may be left behind."""
    before = descriptors_in_use()
    async with children_of(argv) as children:
        with pytest.raises(ChildStartFailed) as raised:
            await children.start(SHARD)
        assert open_descriptors() == before
    return str(raised.value)


async def test_a_name_is_looked_up_in_path_and_seen_by_the_program_as_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "prog").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", f"{tmp_path}/none:{tmp_path}/bin:/bin")
    assert await output_of("prog", "-c", "echo $0 $1", "a b", "c") == b"a b c\n"
    assert await output_of("prog", "-c", "tr '\\0' '\\n' < /proc/$$/cmdline | head -1") == b"prog\n"


async def test_arguments_go_literally(tmp_path: Path) -> None:
    shows = script(tmp_path / "shows", '#!/bin/sh\nprintf "%s|" "$@"\n')
    assert await output_of(str(shows), "$HOME", "*", '"q"', "") == b'$HOME|*|"q"||'


async def test_a_path_is_relative_to_the_daemons_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script(tmp_path / "bin" / "prog", "#!/bin/sh\necho here\n")
    monkeypatch.chdir(tmp_path)
    assert await output_of("bin/prog") == b"here\n"
    assert await output_of("./bin/prog") == b"here\n"


async def test_the_daemons_directory_is_searched_only_where_path_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script(tmp_path / "prog", "#!/bin/sh\necho here\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/usr/bin::/bin")
    assert await output_of("prog") == b"here\n"
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert "looked for in PATH only: write ./prog" in await failure_of("prog")


async def test_a_file_in_path_that_cannot_be_executed_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script(tmp_path / "first" / "prog", "#!/bin/sh\necho first\n", mode=0o644)
    (tmp_path / "second" / "prog").mkdir(parents=True)
    script(tmp_path / "third" / "prog", "#!/bin/sh\necho third\n")
    monkeypatch.setenv("PATH", f"{tmp_path}/first:{tmp_path}/second:{tmp_path}/third")
    assert await output_of("prog") == b"third\n"


async def test_a_script_without_an_interpreter_line_runs_in_the_shell(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plain = script(tmp_path / "plain", 'echo "$0|$1|$2"\n')
    assert await output_of(str(plain), "a b", "c") == f"{plain}|a b|c\n".encode()
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    assert await output_of("plain", "x") == f"{plain}|x|\n".encode()


async def test_a_missing_name_tells_where_it_was_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert await failure_of("consumer.py") == (
        "cannot start 'consumer.py' of executableName: no such program; give it a path with a slash, or "
        "add its directory to PATH (PATH is /usr/bin:/bin)"
    )


async def test_a_missing_path_tells_from_where_it_was_looked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    expected = f"cannot start './consumer.py' of executableName: no such file (looked from {tmp_path})"
    assert await failure_of("./consumer.py") == expected
    assert (
        await failure_of("/no/consumer.py")
        == "cannot start '/no/consumer.py' of executableName: no such file"
    )


async def test_a_vanished_working_directory_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert "a directory that does not exist any more" in await failure_of("./consumer.py")


async def test_a_file_that_is_not_executable_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plain = script(tmp_path / "plain", "#!/bin/sh\n", mode=0o644)
    assert "not executable" in await failure_of(str(plain))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert f"{plain}: it is not executable" in await failure_of("plain")


async def test_a_directory_is_reported(tmp_path: Path) -> None:
    assert "it is a directory" in await failure_of(str(tmp_path))


async def test_a_missing_interpreter_is_reported_with_the_line_that_names_it(tmp_path: Path) -> None:
    broken = script(tmp_path / "broken", "#!/usr/bin/pyhton3\r\nprint()\n")
    assert r"does not exist: '#!/usr/bin/pyhton3\r'" in await failure_of(str(broken))


async def test_a_missing_loader_is_reported(tmp_path: Path) -> None:
    binary = binary_without_loader(tmp_path / "binary")
    assert "the loader that it was built for does not exist" in await failure_of(str(binary))


@pytest.mark.parametrize("argv", [(), ("",)])
async def test_an_empty_command_is_reported(argv: tuple[str, ...]) -> None:
    assert "executableName is empty" in await failure_of(*argv)


async def test_an_argument_that_the_system_cannot_pass_on_is_reported() -> None:
    assert "embedded null" in await failure_of("/bin/sh", "a\0b")
    assert "embedded null" in await failure_of("/bin/\0")
    assert "Argument list too long" in await failure_of("/bin/sh", "x" * 10_000_000)


@pytest.mark.parametrize(
    ("number", "advice"),
    [(errno.EMFILE, "ulimit -n"), (errno.EAGAIN, "ulimit -u"), (errno.ETXTBSY, "Text file busy")],
)
async def test_limits_of_the_system_are_reported_with_what_to_raise(
    monkeypatch: pytest.MonkeyPatch, number: int, advice: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert advice in await failure_of("/bin/sh")


async def test_a_program_that_vanishes_at_the_last_moment_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    prog = script(tmp_path / "prog", "#!/bin/sh\n")
    real = subprocess.Popen[bytes]

    def vanish(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        prog.unlink()
        return real(*arguments, **options)

    monkeypatch.setattr(subprocess, "Popen", vanish)
    assert (await failure_of(str(prog))).endswith("No such file or directory")


async def test_no_descriptor_is_lost_when_only_some_could_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pipe
    left = [2]

    def pipe() -> tuple[int, int]:
        if not left[0]:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        left[0] -= 1
        return real()

    monkeypatch.setattr(os, "pipe", pipe)
    assert "too many open files" in await failure_of("/bin/sh")


def test_a_program_can_be_checked_without_starting_it() -> None:
    assert find_program("/bin/sh") == "/bin/sh"
    with pytest.raises(ChildStartFailed):
        find_program("/bin/none")


async def test_a_child_of_one_of_many_streams_is_told_of_it_by_its_environment() -> None:
    arn = "arn:aws:kinesis:eu-west-1:111122223333:stream/clicks"
    program = (
        "import os; print(*(os.environ.get(f'KCL_{n}') for n in ('STREAM_NAME', 'STREAM_ARN', 'SHARD_ID')))"
    )
    async with children_of((sys.executable, "-c", program)) as children:
        reported = await children.start(SHARD, StreamRef("clicks", arn))
        assert await drained(reported) == f"clicks {arn} {SHARD}\n".encode()
        alone = await children.start(SHARD)
        assert await drained(alone) == b"None None None\n"
