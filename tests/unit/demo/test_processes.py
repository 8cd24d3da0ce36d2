"""What the processes of the demo are given, and how a failed one is told of."""

from __future__ import annotations

from pathlib import Path

from kcl_local.demo.processes import environment, log_tail


def test_nothing_of_the_users_account_reaches_a_process() -> None:
    mine = {
        "AWS_PROFILE": "production",
        "AWS_SESSION_TOKEN": "x",
        "AWS_ENDPOINT_URL": "https://real",
        "PATH": "/bin",
    }
    given = environment({"MORE": "1"}, base=mine)
    assert given["PATH"] == "/bin"
    assert given["MORE"] == "1"
    assert given["AWS_ACCESS_KEY_ID"] == "local"
    assert not {"AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"} & given.keys()


def test_the_end_of_a_log_is_shown_with_its_path(tmp_path: Path) -> None:
    log = tmp_path / "daemon.log"
    log.write_bytes(b"".join(b"line %d\n" % number for number in range(100)) + b"\xff last")
    reported = log_tail(log, lines=2).splitlines()
    assert str(log) in reported[0]
    assert reported[1:] == ["  line 99", "  \ufffd last"]


def test_a_log_that_is_not_there_is_no_second_failure(tmp_path: Path) -> None:
    assert "cannot be read" in log_tail(tmp_path / "absent")
