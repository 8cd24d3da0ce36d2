"""`kcl_spark.run` in a session that is there, as in a notebook: with the data source, and with Spark's file stream."""

from __future__ import annotations

import ast
import inspect
import pickle
import re
import sys
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pyarrow.dataset as ds
import pytest
from pyspark.sql import DataFrame, SparkSession

import kcl_spark_source
from kcl_landing.control import epoch_ms, monotonic_s, pause
from kcl_local.dynamodb import DynamoDbServer
from kcl_spark import pipeline, run, sinks
from kcl_spark.api import Batch, NotAPipeline
from kcl_spark.application import Application, CannotRead, QueryFailed, StartedQuery
from kcl_spark.outputs import OutputTaken
from tests.documents.blocks import ROOT, blocks_of
from tests.spark import elsewhere
from tests.spark.logs import MINUTE_0_MS, STEP_MS, STREAM, Landing, counted, texts
from tests.spark.parts import move_watermark

PARENT, CHILD, OTHER = (f"shardId-{number:012}" for number in range(3))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    monkeypatch.setenv("KCL_TEST_OUT", str(tmp_path / "out"))
    monkeypatch.setattr(sys, "path", [str(Path(elsewhere.__file__).parent), *sys.path])
    yield tmp_path
    sys.modules.pop("elsewhere", None)


@pytest.fixture
def own(spark: SparkSession) -> SparkSession:
    """A session of the test's own: the source `kcl` of the engine is another."""
    return spark.newSession()


def landed(folder: Path, layout: Any = "dated") -> Landing:
    landing = Landing(folder / "landed", layout)
    landing.land(PARENT, 300, in_segments=3, children=(CHILD,))
    landing.land(CHILD, 100, in_segments=2)
    landing.land(OTHER, 250, in_segments=2)
    return landing


def drained(
    spark: SparkSession,
    folder: Path,
    pipeline: Any = "elsewhere:everything",
    *,
    landing: str = "",
    checkpoint: str = "",
    stream: str = STREAM,
    **more: Any,
) -> Application:
    application = run(
        pipeline,
        landing=landing or str(folder / "landed"),
        checkpoint=checkpoint or str(folder / "state"),
        stream=stream,
        spark=spark,
        trigger="availableNow",
        **more,
    )
    assert application.await_termination(200), "not all is read"
    return application


def test_listeners_come_by_settings_of_spark_alone(
    here: Path, own: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once in a session, however often it is registered: for Prometheus over HTTP, and for CloudWatch."""
    landed(here, "log")
    for name, value in {
        "ACCESS_KEY_ID": "local",
        "SECRET_ACCESS_KEY": "local",
        "REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    own.conf.set("spark.kcl.listener.prometheus", "127.0.0.1:0")
    own.conf.set("spark.kcl.listener.cloudwatch", "words")
    with DynamoDbServer() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_CLOUDWATCH", server.cloudwatch_url)
        with caplog.at_level("INFO", "kcl_spark_source"):
            kcl_spark_source.register(own)
            drained(own, here, listened)
        (address,) = re.findall(r"http://127\.0\.0\.1:\d+/metrics", caplog.text)
        deadline_s, told = monotonic_s() + 60, ""
        while 'kcl_source_lag_segments{query="listened"} 0\n' not in told:  # Spark tells it after the batch
            assert monotonic_s() < deadline_s, told
            pause(0.1)
            with urlopen(address, timeout=10) as answer:
                told = answer.read().decode()
        assert server.cloudwatch.calls["PutMetricData"] == 1, "once a minute, however many batches"
    manager: Any = own.streams
    listeners = manager._jsqm.listListeners()
    assert len([each for each in listeners if "Python" in each.getClass().getName()]) == 2


@pipeline
def listened(records: DataFrame) -> Any:
    yield records.writeStream.queryName("listened").format("noop")


@pytest.mark.parametrize(
    ("source", "layout", "options"),
    [
        ("files", "dated", {"maxFilesPerTrigger": "3"}),
        ("kcl", "log", {"maxBytesPerTrigger": "9000"}),
    ],
)
def test_a_pipeline_reads_the_log_once_and_goes_on_where_it_was(
    own: SparkSession, here: Path, source: str, layout: str, options: dict[str, str]
) -> None:
    landing = landed(here, layout)
    application = drained(own, here, source=source, options=options)
    assert set(application.queries) == {"files", "batches", "windows"}
    landing.land(CHILD, 50)
    drained(own, here, source=source)
    assert len(landing.expected()) == counted(landing.root)
    for output in ("files", "batches"):
        assert texts(here / "out" / output) == landing.expected(), output
    assert windows(here / "out" / "windows") == expected_windows(landing)


def windows(output: Path) -> dict[tuple[int, str], int]:
    """By hour and shard, what the last batch has said."""
    found: dict[tuple[int, str], int] = {}
    for folder in sorted(output.glob("batch_id=*"), key=lambda each: int(each.name.partition("=")[2])):
        files = [str(each) for each in folder.glob("*.parquet")]
        for row in ds.dataset(files).to_table().to_pylist() if files else ():
            hour = (row["window"]["start"].timestamp() * 1000 - MINUTE_0_MS) // 3_600_000
            found[hour, row["shard_id"]] = row["count"]
    return found


def expected_windows(landing: Landing) -> dict[tuple[int, str], int]:
    return dict(
        Counter(
            (number * STEP_MS // 3_600_000, shard)
            for shard, count in landing.counts.items()
            for number in range(count)
        )
    )


def test_a_function_is_enough_and_a_batch_handler_is_told_of_replays(own: SparkSession, here: Path) -> None:
    landed(here)
    (here / "out").mkdir()
    drained(own, here, elsewhere.noted, source="files", columns="aws", options={"maxFilesPerTrigger": "4"})
    told = [line.split() for line in (here / "out" / "noted").read_text().splitlines()]
    assert [each[:4] for each in told] == [["0", "noted", "False", "True"], ["1", "noted", "False", "True"]]
    assert sum(int(each[4]) for each in told) == 650


def test_a_query_that_fails_ends_the_others_and_is_named(own: SparkSession, here: Path) -> None:
    landed(here)
    places: dict[str, Any] = {"landing": str(here / "landed"), "checkpoint": str(here / "state")}
    application = run("elsewhere:one_fails", spark=own, source="files", stream=STREAM, **places)
    with pytest.raises(QueryFailed, match=r"(?s)query 'poisoned' failed: .*cannot digest batch 0 of 650"):
        application.await_termination(100)
    assert not any(query.isActive for query in application.queries.values())


def test_a_source_that_cannot_be_read_or_would_lose_batches_is_refused(own: SparkSession, here: Path) -> None:
    landed(here)
    with pytest.raises(NotAPipeline, match="two queries of the pipeline have the name 'same'"):
        drained(own, here, "elsewhere:twins", source="files")
    with pytest.raises(NotAPipeline, match="reader is for one query, and the pipeline has 3"):
        drained(own, here, options={"reader": "nightly"})
    with pytest.raises(CannotRead, match="needs the name of the stream"):
        run("elsewhere:twins", spark=own, source="files", landing="/x", checkpoint="/y")
    with pytest.raises(CannotRead, match="is no landing log"):
        drained(own, here, source="files", landing=str(here))
    with pytest.raises(CannotRead, match="has nothing of the stream 'ordres'"):
        drained(own, here, source="files", stream="ordres")
    Landing(here / "other", "log")
    with pytest.raises(CannotRead, match="landingLayout = log"):
        drained(own, here, source="files", landing=str(here / "other"))
    drained(own, here, source="files")
    with pytest.raises(OutputTaken, match="batches would be dropped without a word"):
        drained(own, here, source="files", checkpoint=str(here / "new"))


def test_a_plain_foreach_batch_is_exactly_once_by_the_id_of_its_query(own: SparkSession, here: Path) -> None:
    """Without `run` and without an engine, as on any Spark: the id comes from the checkpoint."""
    landed(here)
    seen: list[Batch] = []

    def plain(checkpoint: str, function: Any) -> None:
        schema = "data binary, shard_id string, sequence_number string"
        records = own.readStream.schema(schema).parquet(str(here / "landed" / STREAM))
        writer = records.selectExpr("cast(data as string) as text").writeStream.foreachBatch(function)
        writer.option("checkpointLocation", str(here / checkpoint)).trigger(
            availableNow=True
        ).start().awaitTermination()

    def note(_frame: DataFrame, batch: Batch) -> None:
        seen.append(batch)

    plain("first", sinks.foreach_batch(note))
    Landing(here / "landed").land("shardId-000000000009", 10)
    plain("first", sinks.foreach_batch(note))
    plain("second", sinks.foreach_batch(note))
    assert [each.id for each in seen] == [0, 1, 0]
    assert seen[0].state == seen[1].state != seen[2].state
    plain("third", sinks.overwrite_batch(str(here / "once")))
    assert len(texts(here / "once")) == 660
    with pytest.raises(Exception, match="batches would be dropped without a word"):
        plain("fourth", sinks.overwrite_batch(str(here / "once")))


@pytest.mark.parametrize("document", ["docs/spark.md", "docs/landing.md"])
def test_calls_in_the_documents_could_be_made(document: str) -> None:
    blocks = [
        each for each in blocks_of((ROOT / document).read_text("utf-8"), document) if each.language == "py"
    ]
    calls = [
        each for block in blocks for each in ast.walk(ast.parse(block.body)) if isinstance(each, ast.Call)
    ]
    runs = [each for each in calls if isinstance(each.func, ast.Attribute) and each.func.attr == "run"]
    known = set(inspect.signature(run).parameters)
    assert runs
    for each in runs:
        assert {keyword.arg for keyword in each.keywords} <= known, f"{document}: {ast.unparse(each)}"


def test_a_query_whose_watermark_is_in_the_future_says_so_when_it_is_started(
    own: SparkSession, here: Path, caplog: pytest.LogCaptureFixture
) -> None:
    landed(here)
    (here / "out").mkdir()
    drained(own, here, "elsewhere:noted", source="files")
    assert not caplog.records
    move_watermark(here / "state" / "noted", epoch_ms() + 3_600_000)
    drained(own, here, "elsewhere:noted", source="files")
    (said,) = caplog.records
    assert (said.name, said.levelname) == ("kcl_spark", "WARNING")
    assert "the watermark of query 'noted' is 3" in said.getMessage()


def test_the_first_batch_after_a_restart_may_be_a_replay() -> None:
    assert not StartedQuery("raw", "state", None, newest=-1).batch(0).is_replay
    query = StartedQuery("raw", "state", None)
    told = [(each.id, each.is_replay) for each in map(query.batch, (4, 4, 5, 6))]
    assert told == [(4, True), (4, True), (5, False), (6, False)]
    assert query.query_id is None
    there: Any = object()
    shipped = pickle.loads(pickle.dumps(StartedQuery("raw", "state", there)))
    assert (shipped.name, shipped.spark) == ("raw", None), "a session cannot be sent"
