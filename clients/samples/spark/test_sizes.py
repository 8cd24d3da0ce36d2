"""python3 -m unittest: the pipeline on records of a file, in a Spark of its own."""

from __future__ import annotations

import os
import sys
import tempfile
import unittest
from pathlib import Path

from kcl_spark.session import find_java
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from sizes import sizes

HERE = Path(__file__).parent
PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Sizes(unittest.TestCase):
    """What the console would show is put into a table."""

    def setUp(self) -> None:
        """Spark runs on the Java that the daemon would choose."""
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        os.environ["JAVA_HOME"] = str(find_java(os.environ, folder / "java").home)

    def test_keys_and_minutes_are_summed(self) -> None:
        conf: dict[str, bool | float | int | str | None] = {
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.streaming.stateStore.providerClass": PROVIDER,
            "spark.executorEnv.PYTHONPATH": str(HERE),
        }
        spark = SparkSession.builder.master("local[2]").config(map=conf).getOrCreate()
        self.addCleanup(spark.stop)
        lines = spark.read.text(str(HERE / "records.txt"))
        key, data = F.get_json_object("value", "$.id"), F.col("value").cast("binary")
        arrived = F.current_timestamp().alias("approximate_arrival_timestamp")
        records = lines.select(key.alias("partition_key"), data.alias("data"), arrived)
        with tempfile.TemporaryDirectory() as folder:
            records.write.parquet(f"{folder}/in")
            stream = spark.readStream.schema(records.schema).parquet(f"{folder}/in")
            for number, query in enumerate(sizes(stream)):
                writer = query.format("memory").option("checkpointLocation", f"{folder}/{number}")
                self.assertTrue(writer.trigger(availableNow=True).start().awaitTermination(120))
            found = {row.partition_key: row.bytes for row in spark.table("sizes").collect()}
            by_minute = [row.amount for row in spark.table("by_minute").orderBy("minute").collect()]
        wanted = (HERE / "records.txt").read_text("utf-8").splitlines()
        self.assertEqual(sorted(found.values()), sorted(len(line.encode()) for line in wanted))
        self.assertEqual([round(amount, 2) for amount in by_minute], [3.3, 0.4])


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    unittest.main()
