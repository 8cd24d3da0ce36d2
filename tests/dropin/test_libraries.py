"""Each client library's processor under the real daemon: records in are records out, with a reshard and a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.dropin.libraries import LIBRARIES, Library
from tests.dropin.resharding import QUICK, is_finished, open_shards, split
from tests.process.daemon import application, wait_until
from tests.process.local import Local

pytestmark = pytest.mark.timeout(300)

SHARDS: Final = 2


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)
def test_records_in_are_records_out_with_a_reshard_and_a_restart(
    local: Local, tmp_path: Path, library: Library
) -> None:
    command = library.command()
    name = f"dropin-{library.name.lower().replace(' ', '-').strip('.*')}"
    with application(local, tmp_path, name, shards=SHARDS) as app:
        app.put(20)
        with app.daemon(command, QUICK, worker="first") as daemon:
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
        with app.daemon(command, QUICK, worker="second") as daemon:
            app.wait_done(open_shards(app))
            daemon.stop()
        app.assert_account(repeated=0)
        kinds = {(entry.kind, entry.shard_id) for _, entry in app.ledgers}
        assert ("ended", parent) in kinds
        assert {shard_id for kind, shard_id in kinds if kind == "stopping"} == set(open_shards(app))
        assert {shard_id for kind, shard_id in kinds if kind == "lost"} == set(open_shards(app))
