"""The sample with state of its own, and with windows, runs on the installed Spark."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from tests.spark.daemon import ROOT

PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


ARRIVED = datetime(2025, 11, 26, 10, 0, 21, tzinfo=UTC)
AT = "2025-11-26T10:00:20Z"
IN_THE_YEAR_58873 = b'{"amount":1000,"at":1795690600000}'


def test_keys_and_minutes_are_summed_whatever_the_clock_of_a_producer_says(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "clients" / "samples" / "spark"))
    sample = import_module("sizes")
    cloudpickle.register_pickle_by_value(sample)  # type: ignore[no-untyped-call]
    good, later = f'{{"amount":2.5,"at":"{AT}"}}'.encode(), f'{{"amount":4,"at":"{AT}"}}'.encode()
    provider = "spark.sql.streaming.stateStore.providerClass"
    spark.conf.set(provider, PROVIDER)

    def run(*rows: tuple[str, bytes]) -> dict[str, set[tuple[object, ...]]]:
        given = [(key, bytearray(data), ARRIVED) for key, data in rows]
        schema = "partition_key string, data binary, approximate_arrival_timestamp timestamp"
        spark.createDataFrame(given, schema).write.mode("append").parquet(str(tmp_path / "in"))
        shown: dict[str, set[tuple[object, ...]]] = {}
        for query in sample.sizes(spark.readStream.schema(schema).parquet(str(tmp_path / "in"))):
            name = f"batch_{len(shown)}"
            rows_of = partial(keep, shown.setdefault(name, set()))
            writer = query.foreachBatch(rows_of).option("checkpointLocation", str(tmp_path / name))
            assert writer.trigger(availableNow=True).start().awaitTermination(120)
        return shown

    try:
        run(("a", good), ("b", IN_THE_YEAR_58873))
        found = run(("a", later))
    finally:
        spark.conf.unset(provider)
        cloudpickle.unregister_pickle_by_value(sample)  # type: ignore[no-untyped-call]
        del sys.modules["sizes"]
    assert found == {"batch_0": {("a", len(good) + len(later))}, "batch_1": {(6.5,)}}


def keep(rows: set[tuple[object, ...]], frame: DataFrame, _batch_id: int) -> None:
    rows |= {tuple(each) for each in frame.select(*[c for c in frame.columns if c != "minute"]).collect()}
