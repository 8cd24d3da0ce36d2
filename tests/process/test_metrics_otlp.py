"""Metrics over OTLP, as a collector gets them over HTTP."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import anyio
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

from kcl_daemon.metrics import kcl, own
from kcl_daemon.system import SystemClock
from kcl_daemon.telemetry.otlp import OtlpExporter
from tests.unit.fakes import MemoryLog
from tests.unit.metrics.snapshots import ENGINE, shard, snapshot
from tests.unit.metrics.stage import Gathered


class Collector(BaseHTTPRequestHandler):
    """Keeps what is posted; answers as it is told."""

    requests: ClassVar[list[ExportMetricsServiceRequest]] = []
    paths: ClassVar[list[str]] = []
    status: ClassVar[int] = 200

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.requests.append(ExportMetricsServiceRequest.FromString(body))
        self.paths.append(self.path)
        self.send_response(self.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in http.server
        """Quietly."""


@pytest.fixture(name="url")
def _collector() -> Generator[str, None, None]:
    Collector.requests.clear()
    Collector.paths.clear()
    Collector.status = 200
    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1/metrics"
        server.shutdown()
        thread.join()


def export(url: str, gathered: Gathered, log: MemoryLog) -> OtlpExporter:
    seen = snapshot(shard(1), shard(2), spark=ENGINE)
    return OtlpExporter(
        url,
        who={"kcl.application": "app", "service.instance.id": "w-1"},
        totals=gathered.totals,
        snapshot=lambda: seen,
        period_s=0.05,
        meters=gathered.meters,
        clock=SystemClock(),
        log=log,
    )


def metrics_of(request: ExportMetricsServiceRequest) -> dict[str, Metric]:
    ((resource,),) = (request.resource_metrics,)
    ((scope,),) = (resource.scope_metrics,)
    assert scope.scope.name == "kcl-daemon"
    return {metric.name: metric for metric in scope.metrics}


def some() -> Gathered:
    gathered = Gathered()
    for seconds in (0.001, 0.3, 70.0):
        gathered.meters.done(kcl.DISCOVERY, seconds)
    gathered.meters.add(kcl.PROCESS_BYTES, 1000, shard_id="shardId-000000000001")
    gathered.meters.add(own.BUFFERED_BYTES, 5)
    return gathered


def test_a_collector_gets_sums_gauges_and_histograms_with_their_labels(url: str) -> None:
    log = MemoryLog()
    anyio.run(export(url, some(), log).post)

    (request,) = Collector.requests
    assert Collector.paths == ["/v1/metrics"]
    who = {each.key: each.value.string_value for each in request.resource_metrics[0].resource.attributes}
    assert who["service.name"] == "kcl-daemon"
    assert (who["service.instance.id"], who["kcl.application"]) == ("w-1", "app")
    metrics = metrics_of(request)
    processed = metrics["kcl.processed"]
    assert (processed.unit, processed.sum.is_monotonic) == ("By", True)
    (point,) = processed.sum.data_points
    assert point.as_double == 1000.0
    assert {each.key: each.value.string_value for each in point.attributes} == {
        "shard_id": "shardId-000000000001"
    }
    assert 0 < point.start_time_unix_nano <= point.time_unix_nano
    assert metrics["kcl.retrieval_held"].gauge.data_points[0].as_double == 5.0
    assert len(metrics["kcl.shard_idle"].gauge.data_points) == 2
    assert metrics["kcl.spark_query_batch"].gauge.data_points[0].as_double == 12.0
    assert metrics["kcl.spark_shard"].sum.data_points[0].as_double == 64_000.0
    latency = metrics["kcl.record_latency"]
    of_shards = latency.exponential_histogram.data_points
    assert (latency.unit, len(of_shards)) == ("s", 2)
    of_shard = of_shards[0]
    assert [each.key for each in of_shard.attributes] == ["shard_id"]
    assert (of_shard.count, of_shard.scale, of_shard.zero_count) == (5, 3, 0)
    assert sum(of_shard.positive.bucket_counts) == 5
    # Three took a second, which is in the bucket from 2**(-1/8) to 1.
    assert (of_shard.positive.offset, of_shard.positive.bucket_counts[0]) == (-1, 3)
    assert of_shard.min < 1.0
    assert 8.0 <= of_shard.max < 8.8
    duration = metrics["kcl.operation_duration"]
    assert duration.unit == "s"
    (times,) = duration.histogram.data_points
    assert (times.count, times.min, times.max) == (3, 0.001, 70.0)
    assert times.sum == pytest.approx(70.301)
    assert list(times.bucket_counts) == [1, 0, 0, 1, 0, 0, 0, 1]
    assert next(iter(times.explicit_bounds)) == 0.005
    assert log.lines == []


def test_it_posts_in_each_period_and_once_more_at_the_end(url: str) -> None:
    async def main() -> int:
        loop = export(url, some(), MemoryLog())
        async with anyio.create_task_group() as background:
            background.start_soon(loop.run)
            with anyio.fail_after(60):
                while len(Collector.requests) < 3:  # noqa: ASYNC110 - another thread fills it
                    await anyio.sleep(0.01)
            background.cancel_scope.cancel()
        before = len(Collector.requests)
        await loop.shutdown()
        return before

    before = anyio.run(main)
    assert len(Collector.requests) > before


def test_a_refusal_is_reported_once_counted_and_ends_nothing(
    url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    gathered, log = some(), MemoryLog()

    async def main() -> None:
        loop = export(url, gathered, log)
        Collector.status = 400
        await loop.post()
        await loop.post()
        Collector.status = 200
        await loop.post()

    anyio.run(main)
    assert [(level, event) for level, event, _ in log.lines] == [
        ("warning", "otlp_export_failed"),
        ("debug", "otlp_export_failed"),
        ("info", "otlp_export_works_again"),
    ]
    assert "metricsOtlpEndpoint" in str(log.lines[0][2]["advice"])
    assert gathered.value(own.OTLP_LOST) == 2.0
    assert capfd.readouterr().err == ""  # the exporter's own words do not stand between ours


def test_a_collector_that_is_not_there_holds_nobody_up() -> None:
    gathered, log = some(), MemoryLog()

    async def main() -> list[bool]:
        loop = export("http://127.0.0.1:9/v1/metrics", gathered, log)
        ended: list[bool] = []
        async with anyio.create_task_group() as background:

            async def post() -> None:
                await loop.post()
                ended.append(True)

            background.start_soon(post)
            for _ in range(5):  # others get on while it tries
                await anyio.sleep(0.02)
            background.cancel_scope.cancel()
        # Its thread would go on trying for seconds, with random pauses: a property test that draws meanwhile objects.
        loop._exporter.shutdown()
        return ended

    # It tries for seconds; one that held up the loop would have ended before the first beat.
    assert anyio.run(main) == []
