"""The real daemon with a pipeline on local endpoints: from a properties file to parquet, as a scheduled job."""

from __future__ import annotations

import shutil
from pathlib import Path

import anyio
import pytest

from kcl_local.demo.feed import library_feed
from kcl_local.demo.processes import Processes
from kcl_local.demo.producer import Pace
from kcl_local.demo.stage import stage
from tests.spark.crashes import texts

RECORDS = 2_000
WITHIN_S = 300

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]


async def test_a_scheduled_job_reads_a_split_stream_to_its_end_and_stops(tmp_path: Path) -> None:
    shutil.copy(Path(__file__).with_name("jobs.py"), tmp_path / "jobs.py")
    async with stage(tmp_path, Processes(), shards=2) as set_up:
        for _ in range(2):
            await set_up.producer().run(library_feed(), Pace(rate=2_000, seconds=60, records=RECORDS))
            await set_up.stream.split()
        properties = set_up.write_properties(
            "worker",
            {
                "sparkPipeline": "jobs:two_sinks",
                "sparkTrigger": "availableNow",
                "sparkMaster": "local[2]",
                "sparkDriverMemory": "600m",
                "sparkConf.spark.ui.enabled": "false",
                "sparkConf.spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
            },
        )
        kept = [line for line in properties.read_text().splitlines() if not line.startswith("executableName")]
        properties.write_text("\n".join(kept))
        async with set_up.daemon(properties) as daemon:
            with anyio.fail_after(WITHIN_S):
                code = await daemon.wait()
        assert code == 0, daemon.log.read_text()[-5_000:]
        leases = await set_up.leases()
        assert sum(lease.checkpoint == "SHARD_END" for lease in leases.values()) == 2
        assert {lease.owner for lease in leases.values()} == {None}
        for output in ("files", "batches"):
            assert len(texts(tmp_path / "out" / output)) == 2 * RECORDS
