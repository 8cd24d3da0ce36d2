"""python3 -m unittest: the pipeline on records of a file, in a Spark of its own."""

from __future__ import annotations

import sys
import tempfile
import unittest
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from sizes import sizes

HERE = Path(__file__).parent
PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Sizes(unittest.TestCase):
    """What the console would show is put into a table."""

    def test_the_bytes_of_each_key_are_summed(self) -> None:
        conf: dict[str, bool | float | int | str | None] = {
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.streaming.stateStore.providerClass": PROVIDER,
            "spark.executorEnv.PYTHONPATH": str(HERE),
        }
        spark = SparkSession.builder.master("local[2]").config(map=conf).getOrCreate()
        self.addCleanup(spark.stop)
        with tempfile.TemporaryDirectory() as folder:
            lines = spark.read.text(str(HERE / "records.txt"))
            key = F.get_json_object("value", "$.id").alias("partition_key")
            records = lines.select(key, F.col("value").cast("binary").alias("data"))
            records.write.parquet(f"{folder}/in")
            writer = sizes(spark.readStream.schema(records.schema).parquet(f"{folder}/in"))
            writer = writer.format("memory").option("checkpointLocation", f"{folder}/state")
            self.assertTrue(writer.trigger(availableNow=True).start().awaitTermination(120))
            found = {row.partition_key: row.bytes for row in spark.table("sizes").collect()}
        wanted = (HERE / "records.txt").read_text("utf-8").splitlines()
        self.assertEqual(sorted(found.values()), sorted(len(line.encode()) for line in wanted))


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    unittest.main()
