"""`kcl-daemon landing` from the command line, over a log in a folder."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kcl_daemon.cli import main
from kcl_landing.keeping.read import report
from kcl_landing.log import PAGE
from kcl_landing.store import open_store
from tests.landing.logs import SHARD, STREAM, write

AT = f"{STREAM}/{SHARD}"
APP = """landing = {folder}
streamName = orders
applicationName = app
regionName = us-east-1
"""


def invoke(*words: object) -> Result:
    return CliRunner().invoke(main, ["landing", *map(str, words)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "log"
    write(open_store(str(folder)), 6, children=())
    return folder


def test_status(folder: Path, tmp_path: Path) -> None:
    report(open_store(str(folder)), "etl", {AT: 4}, at_ms=1_800_000_000_000)
    app = tmp_path / "app.properties"
    app.write_text(APP.format(folder=folder))
    for source in (folder, folder.as_uri(), app):
        result = invoke("status", source)
        assert result.exit_code == 0, result.output
        first, _, row, reader = result.output.splitlines()
        assert first.startswith("application app, layout log: 1 shard (1 ended), 6 segments, 15 records, ")
        assert row.split()[:5] == [AT, "6", "0", "5", "15"]
        assert row.endswith("ended: no children")
        assert reader.startswith("reader etl: 2 segments, 3 records, ")
    found = json.loads(invoke("status", folder, "--json").output)
    assert (found["shards"][0]["segments"], found["shards"][0]["size_bytes"] > 0) == (6, True)
    assert (found["log"]["log_id"], found["shards"][0]["expired"]["last_ms"]) == ("id-1", 0)
    assert found["shards"][0]["readers"]["etl"] == found["readers"][0]["unread"]
    assert found["readers"][0]["unread"]["segments"] == 2
    assert json.loads(invoke("status", folder, "--shard", "none", "--json").output)["shards"] == []


def test_a_reader_behind_retention_is_told_how_much_is_gone(folder: Path) -> None:
    report(open_store(str(folder)), "etl", {AT: 2}, at_ms=1)
    result = invoke("expire", folder, "--older-than", "0", "--force")
    assert (result.exit_code, result.output.splitlines()[0][:44]) == (0, f"{AT}: segments 0 to 4")
    lines = invoke("status", folder).output.splitlines()
    assert (
        f"reader etl is behind retention: 3 segments of {AT} expired before it had them, up to 15/1"
        == lines[-1]
    )


def test_verify(folder: Path) -> None:
    size = sum(each.stat().st_size for each in (folder / AT).iterdir())
    result = invoke("verify", folder, "--jobs", 2)
    assert (result.exit_code, result.output) == (0, f"verified 6 segments, 15 records, {size} bytes: clean\n")
    (folder / AT / "000000000003.parquet").unlink()
    (folder / "notes.txt").write_text("mine")
    result = invoke("verify", folder)
    assert result.exit_code == 1
    assert result.output.splitlines()[0].startswith(
        f"{AT} segment 3 ({AT}/000000000003.parquet): it is missing: "
    )
    assert result.output.splitlines()[1] == "note: (notes.txt): is no object of a landing log"
    assert result.output.endswith(": 1 problem\n")
    result = invoke("verify", folder, "--quick", "--json")
    found = json.loads(result.output)
    assert (result.exit_code, found["is_clean"], found["problem_count"]) == (1, False, 1)


def test_compact_and_expire(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    write(open_store(str(folder)), PAGE + 2)
    count = len(list((folder / AT).iterdir()))
    result = invoke("compact", folder, "--dry-run")
    assert result.exit_code == 0
    assert result.output.splitlines()[-1].startswith("would merge 256 segments into 1 (")
    assert json.loads(invoke("compact", folder, "--json").stdout)["waiting"] == PAGE
    assert len(list((folder / AT).iterdir())) == count + 1
    result = invoke("compact", folder, "--grace", "0")
    assert (
        result.output.splitlines()[-1]
        == "merged 0 segments into 0 (0 B), removed 256; 0 wait for the grace period"
    )
    assert invoke("verify", folder).exit_code == 0
    result = invoke("expire", folder, "--all-readers")
    assert result.exit_code == 2
    assert "no reader is registered" in result.output
    report(open_store(str(folder)), "etl", {AT: PAGE}, at_ms=1)
    result = invoke("expire", folder, "--all-readers", "--dry-run")
    assert result.output.splitlines()[-1].startswith("would expire: 1 segment, 768 records, ")
    result = invoke("expire", folder, "--read-by", "etl", "--json")
    assert json.loads(result.stdout)["rows"] == 768
    result = invoke("expire", folder, "--forget", "etl")
    assert result.output == "reader etl is forgotten\nnothing else was asked for\n"
    assert invoke("verify", folder).output.startswith("verified 2 segments, 6 records, ")


def test_a_wrong_log_file_or_age_is_refused_with_the_reason(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = invoke("status", tmp_path / "empty")
    assert (result.exit_code, "there is no landing log" in result.output) == (2, True)
    result = invoke("status", tmp_path / "none.properties")
    assert (result.exit_code, "none.properties" in result.output) == (2, True)
    app = tmp_path / "app.properties"
    app.write_text(APP.replace("landing = {folder}", "executableName = cat"))
    result = invoke("status", app)
    assert (result.exit_code, "has no landing" in result.output) == (2, True)
    result = invoke("expire", folder)
    assert (result.exit_code, "say what may expire" in result.output) == (2, True)
    result = invoke("expire", folder, "--older-than", "soon")
    assert (result.exit_code, "not an age" in result.output) == (2, True)
    result = invoke("status", "gs://bucket/prefix")
    assert (result.exit_code, "Use s3://" in result.output) == (2, True)


def test_without_arrow_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyarrow" else found(name))
    result = invoke("status", folder)
    assert (result.exit_code, 'pip install "kcl-daemon[landing]"' in result.output) == (2, True)


def test_help_of_the_daemon_loads_no_arrow() -> None:
    program = (
        "import sys; from kcl_daemon.cli import main; main(['--help'], standalone_mode=False);"
        "sys.exit('pyarrow' in sys.modules or 'kcl_landing' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "landing" in ran.stdout
