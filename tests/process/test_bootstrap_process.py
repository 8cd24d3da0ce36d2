"""A daemon on a stream of thousands of shards: how long it takes until each has its lease, and what memory that needs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import psutil
import pytest

from kcl_local.demo.check import monotonic_s
from tests.process.daemon import PROCESSORS, application
from tests.process.local import Local

pytestmark = pytest.mark.timeout(300)

SHARDS: Final = 5000
BOOTSTRAP_MOST_S: Final = 30.0
RSS_MOST_BYTES: Final = 150 * 1000 * 1000
# One child is enough here, and no machine would like five thousand.
SETTINGS: Final = {"maxLeasesForWorker": 1}
Record = Callable[[str, object], None]


@pytest.mark.prove
def test_five_thousand_shards_get_their_leases_in_half_a_minute(
    local: Local, tmp_path: Path, record_property: Record
) -> None:
    with application(local, tmp_path, "bootstrap", shards=0) as app:
        app.create_stream(SHARDS)
        with app.daemon(f"{PROCESSORS}.careful", SETTINGS, fresh=True) as daemon:
            daemon.wait_for("leadership_taken")
            began_s = monotonic_s()
            daemon.wait_for("leases_created", within_s=3 * BOOTSTRAP_MOST_S, count=SHARDS)
            took_s = monotonic_s() - began_s
            rss_bytes = psutil.Process(daemon.process.pid).memory_info().rss
            assert len(daemon.named("leases_being_created")) == SHARDS // 1000
            pages = app.dynamodb.get_paginator("scan").paginate(TableName=app.name, Select="COUNT")
            assert sum(page["Count"] for page in pages) == SHARDS
            daemon.stop()
    record_property("bootstrap_s", round(took_s, 1))
    record_property("bootstrap_rss_mb", round(rss_bytes / 1e6, 1))
    print(f"{SHARDS} leases after {took_s:.1f} s, {rss_bytes / 1e6:.1f} MB RSS")  # noqa: T201
    assert took_s < BOOTSTRAP_MOST_S
    assert rss_bytes < RSS_MOST_BYTES
