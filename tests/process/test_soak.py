"""Minutes of a whole daemon at work while a fifth of its reads go wrong: its memory stands still. Run by `make prove`.

Beside the soak in virtual time (`tests.simulator.soak.play`), which lasts longer and holds more shards, this one has what is not
there: sockets, pipes, threads, the SDK, processes. `SOAK_S` says for how long.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from itertools import cycle
from pathlib import Path
from threading import Event
from typing import Final
from urllib.request import Request, urlopen

import psutil
import pytest

from kcl_local.demo.check import monotonic_s
from kcl_local.serving import FAULTS
from tests.process.daemon import PROCESSORS, Application, application
from tests.process.local import Local

SOAK_S: Final = float(os.environ.get("SOAK_S", "300"))
SHARDS: Final = 8
# About five reads a second, and one of them in trouble; the last one goes to another operation now and then.
TROUBLES: Final[tuple[tuple[str, Mapping[str, object]], ...]] = (
    ("GetRecords", {"fault": "error", "code": "ProvisionedThroughputExceededException"}),
    ("GetRecords", {"fault": "drop"}),
    ("GetRecords", {"fault": "error", "code": "InternalFailure"}),
    ("GetRecords", {"fault": "cut"}),
    ("GetRecords", {"fault": "error", "code": "ExpiredIteratorException"}),
    ("GetRecords", {"fault": "delay", "seconds": 1.0}),
    ("GetRecords", {"fault": "corrupt"}),
    ("GetShardIterator", {"fault": "drop"}),
)
WARM_PART: Final = 0.2
RSS_RATIO_MOST: Final = 1.1

pytestmark = [pytest.mark.prove, pytest.mark.timeout(SOAK_S + 180)]


def order(local: Local, operation: str, fault: Mapping[str, object]) -> None:
    """Let it happen to the next call."""
    reported = json.dumps({"operation": operation, **fault}).encode()
    with urlopen(Request(local.kinesis_url + FAULTS, data=reported), timeout=10) as answer:
        assert answer.status == 204


def work_until(app: Application, ends_s: float, troubles: Iterator[tuple[str, Mapping[str, object]]]) -> int:
    """Write to all shards and make trouble, each second; how much of it."""
    pause, faults = Event(), 0
    while monotonic_s() < ends_s:
        app.put(5)
        order(app.local, *next(troubles))
        faults += 1
        app.poll()
        pause.wait(1.0)  # not for a condition: the pace of the load
    return faults


def test_memory_of_a_daemon_stands_still(
    local: Local, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with application(local, tmp_path, "soak", shards=SHARDS) as app:
        with app.daemon(f"{PROCESSORS}.careful", fresh=True) as daemon:
            daemon.wait_for("child_started", times=SHARDS)
            process, began_s = psutil.Process(daemon.process.pid), monotonic_s()
            troubles = cycle(TROUBLES)
            faults = work_until(app, began_s + SOAK_S * WARM_PART, troubles)
            warm_bytes = process.memory_info().rss
            faults += work_until(app, began_s + SOAK_S, troubles)
            late_bytes = process.memory_info().rss
            app.wait_done()
            daemon.stop()
        app.assert_account()
        reported = (
            f"{sum(shard.written for shard in app.checker.progress()):,} records, {faults} faults in {SOAK_S:g} s: RSS "
            f"{warm_bytes / 1e6:.1f} MB after {SOAK_S * WARM_PART:g} s, {late_bytes / 1e6:.1f} MB at the end, "
            f"ratio {late_bytes / warm_bytes:.3f}"
        )
    print(reported)  # noqa: T201 - the figures, for the notes of a release
    record_property("soak", reported)
    assert late_bytes < warm_bytes * RSS_RATIO_MOST, reported
