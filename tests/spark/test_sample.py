"""The sample with state of its own runs on the installed Spark."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from tests.spark.daemon import ROOT

PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def test_the_bytes_of_each_key_are_summed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "clients" / "samples" / "spark"))
    sample = import_module("sizes")
    cloudpickle.register_pickle_by_value(sample)  # type: ignore[no-untyped-call]
    rows = [("a", b"12"), ("b", b"3"), ("a", b"456")]
    schema = "partition_key string, data binary"
    spark.createDataFrame(rows, schema).write.parquet(str(tmp_path / "in"))
    provider = "spark.sql.streaming.stateStore.providerClass"
    spark.conf.set(provider, PROVIDER)
    try:
        writer = sample.sizes(spark.readStream.schema(schema).parquet(str(tmp_path / "in")))
        writer = writer.format("memory").option("checkpointLocation", str(tmp_path / "state"))
        assert writer.trigger(availableNow=True).start().awaitTermination(120)
        found = sorted((row.partition_key, row.bytes) for row in spark.table("sizes").collect())
    finally:
        spark.conf.unset(provider)
        cloudpickle.unregister_pickle_by_value(sample)  # type: ignore[no-untyped-call]
        del sys.modules["sizes"]
    assert found == [("a", 5), ("b", 1)]
