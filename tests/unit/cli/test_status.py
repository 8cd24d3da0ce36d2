"""`kcl-daemon status`: which daemon it asks, and what its exit code says."""

from __future__ import annotations

import json
import socket
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import pytest
from click import Command
from click.testing import CliRunner, Result

from kcl_daemon.capacity.figures import Capacity
from kcl_daemon.cli.status import NoAnswer, StatusSource, fetch, status, top
from kcl_daemon.config.metrics_and_page import AdminSettings
from kcl_daemon.leases.lease import WorkerId
from tests.unit.admin.serving import Served, serving
from tests.unit.admin.stage import READY, SNAPSHOT, Standing
from tests.unit.config.helpers import GOOD
from tests.unit.metrics.snapshots import BEHIND

TOKEN = "0123456789abcdef"


@pytest.fixture
def made() -> Generator[Served]:
    with serving(Standing(READY)) as page:
        yield page


def call(*words: str, **environment: str) -> Result:
    return CliRunner().invoke(status, words, env=environment)


def properties(folder: Path, more: str) -> str:
    file = folder / "app.properties"
    file.write_text(GOOD + more)
    return str(file)


def test_a_daemon_is_asked_by_its_address(made: Served) -> None:
    done = call("--url", made.url)
    assert done.exit_code == 0
    assert done.output.startswith("running, worst lag 90.0 s (shard 1)")
    assert call("--url", made.url.rstrip("/"), "-q").output == ""


def test_a_daemon_is_asked_by_its_file(made: Served, tmp_path: Path) -> None:
    file = properties(tmp_path, f"adminPort = {made.port}\n")
    assert call("--properties", file).exit_code == 0
    assert call(file).output == call("--properties", file).output


def test_json_is_the_document(made: Served) -> None:
    document = json.loads(call("--url", made.url, "--json").output)
    assert document["snapshot"]["worker_id"] == "w-1"


def test_a_worker_that_is_not_ready_has_an_exit_code_of_its_own() -> None:
    with serving(Standing(SNAPSHOT)) as made:
        done = call("--url", made.url)
        assert done.exit_code == 3
        assert "not ready: shardId-000000000002 makes no progress" in done.output
        assert (call("--url", made.url, "--quiet").output, call("--url", made.url, "-q").exit_code) == ("", 3)


def test_the_leaders_word_is_in_the_exit_code_of_the_others_too() -> None:
    said = Capacity(
        READY.at_ms, WorkerId("w-9"), 2, 0, 2, "", "", "", BEHIND, unread=("shard 3 for 4 min: why",)
    )
    with serving(Standing(replace(READY, leads=False, capacity=said))) as made:
        done = call("--url", made.url)
        assert done.exit_code == 3
        assert "nobody reads shard 3 for 4 min: why, says worker w-9" in done.output


def test_the_token_comes_from_the_file_the_environment_or_the_properties(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    with serving(Standing(READY), AdminSettings(token=TOKEN)) as made:
        refused = call("--url", made.url)
        assert refused.exit_code == 1
        assert "needs a token: set KCL_ADMIN_TOKEN or use --token-file" in refused.output
        assert call("--url", made.url, "--token-file", str(token)).exit_code == 0
        assert call("--url", made.url, KCL_ADMIN_TOKEN=TOKEN).exit_code == 0
        port = f"adminPort = {made.port}\n"
        assert call(properties(tmp_path, f"{port}adminToken = {TOKEN}\n")).exit_code == 0
        assert call(properties(tmp_path, f"{port}adminTokenFile = {token}\n")).exit_code == 0


def test_the_token_of_the_environment_wins_over_the_properties(tmp_path: Path) -> None:
    with serving(Standing(READY), AdminSettings(token=TOKEN)) as made:
        port = f"adminPort = {made.port}\n"
        other = properties(tmp_path, f"{port}adminTokenFile = {tmp_path}/none\n")
        assert call(other, KCL_ADMIN_TOKEN=f"{TOKEN}\n").exit_code == 0
        assert call(other, KCL_ADMIN_TOKEN=TOKEN, KCL_ADMIN_TOKEN_FILE="/none").exit_code == 0
        reachable = properties(tmp_path, f"{port}adminAddress = 0.0.0.0\n")
        assert call(reachable, KCL_ADMIN_TOKEN=TOKEN).exit_code == 0


def unusable(done: Result) -> str:
    """The one line of a command that could not begin."""
    assert done.exit_code == 2
    (line,) = done.output.splitlines()
    return line.removeprefix("Error: ")


@pytest.mark.parametrize("command", [status, top])
def test_a_token_that_cannot_be_read_is_reported_with_what_to_do(command: Command, tmp_path: Path) -> None:
    advice = "; correct it, set KCL_ADMIN_TOKEN or use --token-file"
    missing = properties(tmp_path, f"adminPort = 1\nadminTokenFile = {tmp_path}/none\n")
    line = unusable(CliRunner().invoke(command, [missing]))
    assert line == f"adminTokenFile {tmp_path}/none cannot be read: No such file or directory{advice}"
    folder = properties(tmp_path, f"adminPort = 1\nadminTokenFile = {tmp_path}\n")
    assert unusable(CliRunner().invoke(command, [folder])).endswith(f"cannot be read: Is a directory{advice}")
    for content in (b"", b"\xff" * 20, b"0123456789\nabcdef"):
        (tmp_path / "token").write_bytes(content)
        done = CliRunner().invoke(
            command, ["--url", "http://127.0.0.1:1", "--token-file", f"{tmp_path}/token"]
        )
        assert unusable(done).startswith(f"--token-file {tmp_path}/token ")


@pytest.mark.parametrize("token", ["short", "0123456789\nabcdef", "0123456789abcdé", " "])
def test_a_variable_that_is_no_token_is_reported(token: str, tmp_path: Path) -> None:
    words = "the environment variable KCL_ADMIN_TOKEN is not a token: 16 to 256 printable ASCII characters, no spaces"
    for which in (["--url", "http://127.0.0.1:1"], [properties(tmp_path, "adminPort = 1\n")]):
        assert unusable(call(*which, KCL_ADMIN_TOKEN=token)) == words


def test_a_name_that_cannot_be_looked_up_does_not_answer() -> None:
    done = call("--url", "http://a..b:1")
    assert done.exit_code == 1
    assert "http://a..b:1 does not answer (" in done.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "which daemon? Use kcl-daemon status --properties FILE or --url URL"),
        (["--url", "localhost:80"], "not an address such as http://127.0.0.1:8080"),
        (["--url", "file:///etc/passwd"], "not an address"),
        (["--url", "http://127.0.0.1:99999"], "not an address"),
        (["--url", "http://127.0.0.1:http"], "not an address"),
        (["--url", "http://[::1"], "not an address"),
        (["--url", "http://127.0.0.1:1/a b"], "not an address"),
        (["--url", "http://127.0.0.1:1/é"], "not an address"),
    ],
)
def test_a_command_line_that_names_no_daemon_is_wrong(words: list[str], said: str) -> None:
    done = call(*words)
    assert done.exit_code == 2
    assert said in done.output


@pytest.mark.parametrize(
    ("more", "said"), [("", "does not set adminPort"), ("adminPort = 0\n", "use --url")], ids=["none", "any"]
)
def test_a_file_that_does_not_tell_the_port_is_no_use(tmp_path: Path, more: str, said: str) -> None:
    done = call(properties(tmp_path, more))
    assert done.exit_code == 2
    assert said in done.output


def test_a_daemon_that_does_not_run_is_named_with_what_to_look_at() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    for command in (status, top):
        done = CliRunner().invoke(command, ["--url", f"http://127.0.0.1:{port}"])
        assert done.exit_code == 1
        assert "does not answer (" in done.output
        assert "is the daemon running, with adminPort set?" in done.output


def test_something_else_that_answers_is_no_daemon(made: Served) -> None:
    with pytest.raises(NoAnswer, match="status 404: is it a kcl-daemon"):
        fetch(StatusSource(f"{made.url}elsewhere"))
