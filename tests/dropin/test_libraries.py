"""Each client library's processor under the real daemon: records in are records out, with a reshard and a restart."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

from kcl_daemon.cli import main
from tests.dropin.libraries import LIBRARIES, PROCESSORS, Library
from tests.dropin.obtain import KCLPY_OF_KCL_1_8, kclpy
from tests.dropin.resharding import QUICK, is_finished, open_shards, split
from tests.process.daemon import application, wait_until
from tests.process.local import Local

pytestmark = pytest.mark.timeout(300)

SHARDS: Final = 2


# What the others do is in the matrix and in their conversations, every day.
OFTEN = ("Python v3", "Node v2", "Ruby*", ".NET*")
WHOLE_RUNS = [
    pytest.param(library, id=library.name, marks=[] if library.name in OFTEN else [pytest.mark.prove])
    for library in LIBRARIES
]


@pytest.mark.parametrize("library", WHOLE_RUNS)
def test_records_in_are_records_out_with_a_reshard_and_a_restart(
    local: Local, tmp_path: Path, library: Library
) -> None:
    name = f"dropin-{library.name.lower().replace(' ', '-').strip('.*')}"
    run_through(local, tmp_path, name, library.command(), QUICK)


def test_a_library_of_kcl_1_is_spoken_to_in_its_way(local: Local, tmp_path: Path) -> None:
    """The real one: amazon_kclpy of 2019."""
    command = f"{sys.executable} {PROCESSORS / 'kclpy.py'} {kclpy(KCLPY_OF_KCL_1_8)} v1"
    run_through(local, tmp_path, "dropin-kcl_1_8", command, {**QUICK, "childProtocol": "KCL_1_8"})


def run_through(
    local: Local, directory: Path, name: str, command: str, settings: Mapping[str, object]
) -> None:
    """Put, split, put, stop, put, start, stop: the account must be right at the end."""
    with application(local, directory, name, shards=SHARDS) as app:
        app.put(20)
        with app.daemon(command, settings, worker="first") as daemon:
            app.wait_done()
            parent = open_shards(app)[0]
            split(app, parent, open_then=SHARDS + 1)
            app.put(20)
            app.wait_done(open_shards(app))
            wait_until(lambda: is_finished(app, parent), "the parent is finished")
            daemon.stop()
            assert not daemon.named("child_failed")
            assert not daemon.named("child_stray_output")
        app.put(20)
        with app.daemon(command, settings, worker="second") as daemon:
            app.wait_done(open_shards(app))
            daemon.stop()
        app.assert_account(repeated=0)
        kinds = {(entry.kind, entry.shard_id) for _, entry in app.ledgers}
        assert ("ended", parent) in kinds
        assert {shard_id for kind, shard_id in kinds if kind == "lost"} == set(open_shards(app))
        asked = {shard_id for kind, shard_id in kinds if kind == "stopping"}
        assert asked == set(open_shards(app))


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)
def test_a_processor_runs_on_a_file_of_records_and_its_conversation_can_be_replayed(
    tmp_path: Path, library: Library
) -> None:
    tape = tmp_path / "tape.jsonl"
    command = library.command().split(" ")
    options = ["--records", "-", "--format", "lines", "--transcript", str(tape)]
    ran = CliRunner().invoke(main, ["run-child", *options, "--", *command], input="one\ntwo\n")
    assert (ran.exit_code, ran.stdout) == (0, "delivered 2 of 2 records, 2 checkpoints, last at SHARD_END\n")
    replayed = CliRunner().invoke(main, ["replay-transcript", str(tape), "--", *command])
    assert (replayed.exit_code, replayed.stdout) == (0, "as recorded: 10 messages\n")
