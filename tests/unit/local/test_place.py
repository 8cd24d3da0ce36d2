"""`--local` finds the endpoints of this user, and only those that answer."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcl_local.place import announced, find, lead


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "kcl-daemon"


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield {
            "AWS_ENDPOINT_URL_KINESIS": f"http://127.0.0.1:{server.getsockname()[1]}",
            "AWS_REGION": "us-east-1",
        }


def test_endpoints_are_found_while_they_are_announced(environment: dict[str, str], folder: Path) -> None:
    assert find() is None
    with announced(environment):
        assert find() == environment
    assert find() is None
    assert list(folder.iterdir()) == []


def test_endpoints_that_do_not_answer_are_not_found(environment: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        gone = {"AWS_ENDPOINT_URL_KINESIS": f"http://127.0.0.1:{server.getsockname()[1]}"}
    with announced(gone):
        assert find() is None


def test_the_newest_endpoints_win_and_the_older_ones_leave_them_alone(environment: dict[str, str]) -> None:
    older = environment | {"AWS_REGION": "eu-west-1"}
    with announced(environment):
        with announced(older):
            pass
        assert find() is None, "what ended last has taken its own file away"
    with announced(older):
        inner = announced(environment)
        inner.__enter__()
    assert find() == environment, "the end of the older ones leaves the file of the newer ones"
    inner.__exit__(None, None, None)


def test_a_folder_that_others_can_change_is_not_trusted(environment: dict[str, str], folder: Path) -> None:
    with announced(environment):
        folder.chmod(0o777)
        assert find() is None
    with pytest.raises(PermissionError, match="can be changed by other users"), announced(environment):
        pass


def test_local_leads_nowhere_else() -> None:
    environment = {"AWS_PROFILE": "production", "AWS_SESSION_TOKEN": "t", "HOME": "/"}
    lead(environment, {"AWS_REGION": "us-east-1"})
    assert environment == {"AWS_REGION": "us-east-1", "HOME": "/"}
