"""The bytes that each key has sent, with state that Spark keeps, and orders by minute: `sparkPipeline = sizes:sizes`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - the customary name
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from kcl_spark import decode, pipeline


class BytesOfKey(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._total = handle.getValueState("total", "bytes long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803, ARG002
        before = self._total.get()
        after = (before[0] if before else 0) + sum(len(row.data) for row in rows)
        self._total.update((after,))
        yield Row(partition_key=key[0], bytes=after)

    def close(self) -> None: ...


@pipeline
def sizes(records: DataFrame) -> Iterator[DataStreamWriter]:
    of_keys = records.groupBy("partition_key").transformWithState(
        BytesOfKey(), "partition_key string, bytes long", outputMode="update", timeMode="none"
    )
    yield of_keys.writeStream.queryName("sizes").outputMode("update").format("console")
    # A time that is later than the record's arrival would move the watermark, for good: it is `_corrupt`.
    orders = decode.json(records, "amount double, at timestamp", event_time=decode.event_time("at"), keep=())
    timed = orders.where("_corrupt is null").withWatermark("at", "2 minutes")
    by_minute = timed.groupBy(F.window("at", "1 minute").alias("minute")).agg(F.sum("amount").alias("amount"))
    yield by_minute.writeStream.queryName("by_minute").outputMode("update").format("console")
