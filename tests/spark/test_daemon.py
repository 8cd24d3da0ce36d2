"""The real daemon with a pipeline on local endpoints: from a properties file to parquet and figures, as a scheduled job."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import anyio
import pyarrow.dataset as ds
import pytest
from prometheus_client.parser import text_string_to_metric_families

from kcl_local.demo.processes import Processes
from kcl_local.demo.stage import WriteRate, stage
from kcl_local.demo.stream import in_thread
from kcl_local.demo.text import library_feed
from tests.ports import free_port
from tests.spark.crashes import texts
from tests.spark.daemon import QUICK

RECORDS = 2_000
WITHIN_S = 300

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]


class Scraped:
    """What `/metrics` of a daemon said last of each query and shard of its Spark engine."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.samples: dict[str, dict[str, float]] = {}

    async def go_on(self) -> None:
        """Ask again and again, for ever."""
        while True:
            with suppress(OSError, HTTPException):  # it has not begun, or has ended
                for name, values in _of_spark(await in_thread(self._ask)).items():
                    self.samples.setdefault(name, {}).update(values)
            await anyio.sleep(0.2)

    def _ask(self) -> str:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            connection.request("GET", "/metrics")
            return connection.getresponse().read().decode()
        finally:
            connection.close()


def _of_spark(text: str) -> dict[str, dict[str, float]]:
    """By the name of the sample without its prefix, and the one label."""
    return {
        sample.name.removeprefix("kcl_spark_"): {
            next(iter(each.labels.values())): each.value for each in family.samples
        }
        for family in text_string_to_metric_families(text)
        for sample in family.samples[:1]
        if sample.name.startswith("kcl_spark_")
    }


async def test_a_scheduled_job_reads_a_split_stream_to_its_end_and_stops(tmp_path: Path) -> None:
    shutil.copy(Path(__file__).with_name("jobs.py"), tmp_path / "jobs.py")
    scraped = Scraped(port := free_port())
    async with stage(tmp_path, Processes(), shards=2) as set_up:
        for _ in range(2):
            await set_up.producer().run(library_feed(), WriteRate(rate=2_000, seconds=60, records=RECORDS))
            await set_up.stream.split()
        properties = set_up.write_properties(
            "worker",
            {
                "sparkPipeline": "jobs:two_sinks",
                "sparkTrigger": "availableNow",
                "sparkMaster": "local[2]",
                "sparkDriverMemory": "600m",
                "sparkConf.spark.ui.port": "0",
                "sparkStateDir": str(tmp_path / "state"),
                "adminPort": str(port),
                **{f"sparkConf.{name}": value for name, value in QUICK.items() if name != "spark.ui.enabled"},
            },
        )
        kept = [line for line in properties.read_text().splitlines() if not line.startswith("executableName")]
        properties.write_text("\n".join(kept))
        async with set_up.daemon(properties) as daemon:
            code = None
            with anyio.fail_after(WITHIN_S):
                async with anyio.create_task_group() as background:
                    background.start_soon(scraped.go_on)
                    code = await daemon.wait()
                    background.cancel_scope.cancel()
        log = daemon.log.read_text()
        assert code == 0, log[-5_000:]
        assert "engine_stopped" in log
        assert re.search(r"spark_started.*\bui\W+http://127\.0\.0\.1:\d+", log)
        leases = await set_up.leases()
        assert sum(lease.checkpoint == "SHARD_END" for lease in leases.values()) == 2
        assert {lease.owner for lease in leases.values()} == {None}
        for output in ("files", "batches"):
            assert len(texts(tmp_path / "out" / output)) == 2 * RECORDS
    open_shards = {name for name, lease in leases.items() if lease.checkpoint != "SHARD_END"}
    _agree(scraped.samples, open_shards, tmp_path)


def _agree(samples: dict[str, dict[str, float]], open_shards: set[str], folder: Path) -> None:
    """The last figures are those of what was written; those of a shard that ends may go before all is told."""
    files = list((folder / "out" / "batches").rglob("*.parquet"))
    written = Counter(ds.dataset(files, format="parquet").to_table().column("shard_id").to_pylist())
    assert sum(written[shard] for shard in open_shards) > 0
    for shard in open_shards:
        assert (
            samples["shard_rows_total"][shard]
            == samples["shard_committed_rows_total"][shard]
            == written[shard]
        )
        assert samples["shard_waiting_rows"][shard] == samples["shard_lag_seconds"][shard] == 0
        assert samples["shard_bytes_total"][shard] >= 100 * written[shard]
    assert samples["query_running"] == {"files": 1.0, "batches": 1.0}
    assert samples["query_failures_total"] == {"files": 0.0, "batches": 0.0}
    for query, batch in samples["query_batch"].items():
        commits = [each.name for each in (folder / "state" / "queries" / query / "commits").iterdir()]
        assert batch == max(int(name) for name in commits if name.isdigit())
    assert 0 < min(samples["query_batch_duration_seconds"].values()) < WITHIN_S
    assert (
        samples["query_input_rate"].keys() == samples["query_processed_rate"].keys() == {"files", "batches"}
    )
    assert "query_state_rows" not in samples  # neither keeps any
