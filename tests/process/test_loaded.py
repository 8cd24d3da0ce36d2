"""What a plain daemon loads: one that polls a stream, exports no figures and serves no page, with a child at work."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

from tests.process.daemon import PROCESSORS, ROOT, application
from tests.process.local import Local

# They may only fall.
MODULES_MOST: Final = 146
LINES_MOST: Final = 34_050
ABSENT: Final = (
    "greenlet",
    "pygments",
    "rich",
    "kcl_daemon.aws.cloudwatch",
    "kcl_daemon.aws.dead_letters",
    "kcl_daemon.aws.lookups",
    "kcl_daemon.children.preload",
    "kcl_daemon.children.room",
    "kcl_daemon.consumer.lanes",
    "kcl_daemon.consumer.poison",
    "kcl_daemon.consumer.shard_end",
    "kcl_daemon.cpu.ecs",
    "kcl_daemon.exporters",
    "kcl_daemon.fleet.many_streams",
    "kcl_daemon.fleet.run_end",
    "kcl_daemon.fleet.snapshot_start",
    "kcl_daemon.helper_process",
    "kcl_daemon.hold_words",
    "kcl_daemon.landing",
    "kcl_daemon.migrations.kcl2_rules",
    "kcl_daemon.migrations.kcl2_taking",
    "kcl_daemon.records.changes",
    "kcl_daemon.records.kpl",
    "kcl_daemon.records.lane_window",
    "kcl_daemon.records.record_filter",
    "kcl_daemon.retrieval.batch_window",
    "kcl_daemon.retrieval.fan_out",
    "kcl_daemon.retrieval.filtering",
    "kcl_daemon.retrieval.schemas",
    "kcl_daemon.retrieval.trimmed",
    "kcl_daemon.shards.snapshot",
    "kcl_daemon.shards.table_streams",
    "kcl_daemon.spark",
    "kcl_daemon.telemetry.prometheus",
    "kcl_daemon.telemetry.snapshot",
    "kcl_daemon.transport.dynamodb_streams",
    "kcl_daemon.transport.event_stream",
    "kcl_daemon.transport.snapshots",
)
# The child must not write into the same file.
TELLS: Final = """
import atexit, json, os, sys
path = os.environ.pop("TELL_LOADED")
files = lambda: {name: getattr(module, "__file__", None) or "" for name, module in [*sys.modules.items()] if module}
atexit.register(lambda: open(path, "w").write(json.dumps(files())))
"""


def loaded(local: Local, directory: Path) -> dict[str, str]:
    """The file of each module that a plain daemon has loaded by its end."""
    tells, told = directory / "tells", directory / "loaded.json"
    tells.mkdir()
    (tells / "sitecustomize.py").write_text(TELLS, "ascii")
    variables = {"PYTHONPATH": os.pathsep.join((str(tells), str(ROOT))), "TELL_LOADED": str(told)}
    plain = {"retrievalMode": "POLLING", "metricsLevel": "NONE"}
    with application(local, directory, "loaded", shards=1) as app:
        app.put(1)
        with app.daemon(f"{PROCESSORS}.careful", plain, fresh=True, variables=variables) as daemon:
            app.wait_done()
            daemon.stop()
    found: dict[str, str] = json.loads(told.read_bytes())
    return found


def test_a_plain_daemon_loads_only_what_it_uses(local: Local, tmp_path: Path) -> None:
    found = loaded(local, tmp_path)
    ours = {name: Path(file) for name, file in found.items() if name.split(".")[0].startswith("kcl_")}
    lines = sum(len(file.read_bytes().splitlines()) for file in ours.values())
    print(f"{len(ours)} modules of ours, {lines} lines, {len(found) - len(ours)} others")  # noqa: T201
    assert "kcl_daemon.consumer.consumer" in ours, "a child was at work"
    assert [name for name in ABSENT if name in found] == []
    assert len(ours) <= MODULES_MOST
    assert lines <= LINES_MOST
