"""As whom children run, and what they may use."""

from __future__ import annotations

import os
import pwd
import resource
import sys

import pytest

from kcl_daemon.children import platform
from kcl_daemon.children.process import ProcessChildren
from kcl_daemon.children.start import ChildOptions, account_of, options_of
from kcl_daemon.config.children import ChildSettings
from kcl_daemon.errors import ChildStartFailed
from kcl_daemon.system import SystemClock
from tests.process.children.support import SHARD, RecordingLog, drained

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

AS_ROOT = os.geteuid() == 0
SHOWS = (
    "import os, resource; print(os.getuid(), os.getgid(), sorted(os.getgroups()), os.environ.get('HOME'),"
    " resource.getrlimit(resource.RLIMIT_NOFILE), resource.getrlimit(resource.RLIMIT_AS))"
)


async def output_of(options: ChildOptions, code: str) -> str:
    """What a child under these options prints; the limits are there before it is told anything."""
    program = f"import sys; sys.stdin.read()\n{code}"
    command = (sys.executable, "-I", "-S", "-c", program)
    async with ProcessChildren(command, RecordingLog(), SystemClock(), options) as children:
        child = await children.start(SHARD)
        await child.close_stdin()
        return (await drained(child)).decode().strip()


def limited(settings: ChildSettings) -> ChildOptions | None:
    """None on systems without `prlimit`, which refuse."""
    if platform.LINUX:
        return options_of(settings)
    with pytest.raises(ChildStartFailed, match="on Linux only; remove the lines child"):
        options_of(settings)
    return None


async def test_a_child_that_leaks_is_refused_more_memory() -> None:
    options = limited(ChildSettings(("x",), memory_limit_bytes=300 * 2**20))
    code = "try:\n    bytearray(400 * 2**20)\nexcept MemoryError:\n    print('refused')"
    assert options is None or await output_of(options, code) == "refused"
    assert await output_of(ChildOptions(), code) == ""


async def test_limits_are_hard_and_those_of_the_daemon_stay() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    options = limited(ChildSettings(("x",), open_files_limit=64))
    assert options is None or "(64, 64)" in await output_of(options, SHOWS)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


async def test_a_limit_that_is_not_allowed_is_reported_and_nothing_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(resource, "prlimit", refuse)
    options = limited(ChildSettings(("x",), open_files_limit=64))
    if options is None:
        return
    async with ProcessChildren(("/bin/cat",), RecordingLog(), SystemClock(), options) as children:
        with pytest.raises(ChildStartFailed, match="needs more rights"):
            await children.start(SHARD)


async def test_limits_are_refused_where_the_system_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "LINUX", False)
    assert limited(ChildSettings(("x",), processes_limit=10)) is None
    assert options_of(ChildSettings(("x",), preload=True)).preload


async def test_the_daemons_own_user_changes_nothing_for_one_that_is_not_root(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12_345)
    monkeypatch.setattr(os, "getegid", lambda: 12_345)
    assert account_of("12345:12345") is None
    with pytest.raises(ChildStartFailed, match="only a daemon that runs as root"):
        account_of("0:0")


@pytest.mark.parametrize(
    ("user", "reason"),
    [
        ("no-such-user", "there is no user 'no-such-user'"),
        ("root:no-such-group", "there is no group 'no-such-group'"),
        ("4000000", "give the group too"),
    ],
)
async def test_who_is_not_there_is_reported(user: str, reason: str) -> None:
    with pytest.raises(ChildStartFailed, match=reason):
        options_of(ChildSettings(("x",), user=user))


async def test_a_name_is_looked_up_with_its_groups_and_its_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    entry = pwd.getpwuid(0)
    account = account_of(entry.pw_name)
    assert account is not None
    assert (account.uid, account.gid) == (0, entry.pw_gid)
    assert account.environment == {"HOME": entry.pw_dir, "USER": entry.pw_name, "LOGNAME": entry.pw_name}


@pytest.mark.skipif(not AS_ROOT, reason="only root can start children as another user")
async def test_children_run_as_another_user_in_the_same_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KCL_TEST_MARK", "inherited")
    monkeypatch.chdir("/")
    nobody = pwd.getpwuid(65534)
    shows = ("/bin/sh", "-c", 'echo $(id -u) $(id -g) $(id -G) "$HOME" "$USER" "$KCL_TEST_MARK"')
    for user, home, name in (
        ("65534:65534", nobody.pw_dir, nobody.pw_name),
        (nobody.pw_name, nobody.pw_dir, nobody.pw_name),
        ("3999999:3999999", os.environ.get("HOME", ""), os.environ.get("USER", "")),
    ):
        options = options_of(ChildSettings(("x",), user=user))
        async with ProcessChildren(shows, RecordingLog(), SystemClock(), options) as children:
            child = await children.start(SHARD)
            said = (await drained(child)).decode().strip()
        number = user.partition(":")[0] if user[0].isdigit() else "65534"
        assert said.split(" ")[:2] == [number, number]
        assert said.endswith(f" {home} {name} inherited")


@pytest.mark.parametrize(("inherits", "seen"), [(True, "k r None"), (False, "None r true")])
async def test_a_child_finds_the_daemons_credentials_only_where_it_may(
    monkeypatch: pytest.MonkeyPatch, inherits: bool, seen: str
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_REGION", "r")
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED", raising=False)
    options = options_of(ChildSettings(("x",), inherit_credentials=inherits))
    names = ("AWS_ACCESS_KEY_ID", "AWS_REGION", "AWS_EC2_METADATA_DISABLED")
    code = f"import os; print(*(os.environ.get(name) for name in {names!r}))"
    assert await output_of(options, code) == seen


async def test_stderr_is_as_loud_as_the_settings_say_and_log_messages_are_offered() -> None:
    options = options_of(ChildSettings(("x",), stderr_level="error", log_messages=True))
    code = "import os, sys; print('careful', file=sys.stderr); print(os.environ['KCL_LOG_MESSAGES'])"
    log = RecordingLog()
    async with ProcessChildren(
        (sys.executable, "-I", "-S", "-c", code), log, SystemClock(), options
    ) as children:
        child = await children.start(SHARD)
        assert await drained(child) == b"true\n"
        await child.wait()
    said = [(level, fields["line"]) for level, event, fields in log.recorded.last if event == "child_stderr"]
    assert said == [("error", "careful")]


@pytest.mark.parametrize("holds", [False, True])
async def test_a_child_is_told_that_its_batches_must_be_done(
    holds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KCL_FINISH_BATCHES", "inherited")
    options = options_of(ChildSettings(("x",)), finish_batches=holds)
    told = await output_of(options, "import os; print(os.environ.get('KCL_FINISH_BATCHES'))")
    assert told == ("true" if holds else "None")


async def test_the_daemon_offers_frames_to_its_children_and_run_child_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KCL_FRAMES", "inherited")
    code = "import os; print(os.environ.get('KCL_FRAMES'))"
    assert await output_of(options_of(ChildSettings(("x",))), code) == "1"
    assert await output_of(ChildOptions(), code) == "None"


async def test_every_child_is_told_by_its_own_daemon_that_it_may_reject_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KCL_REJECTS", "inherited")
    code = "import os; print(os.environ.get('KCL_REJECTS'))"
    for options in (options_of(ChildSettings(("x",))), ChildOptions()):
        assert await output_of(options, code) == "1"


async def test_log_messages_are_not_offered_unasked() -> None:
    assert await output_of(ChildOptions(), "import os; print(os.environ.get('KCL_LOG_MESSAGES'))") == "None"
