from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from kcl_spark import decode, pipeline, sinks

ITEM: Final = (
    "id string, customer string, amount decimal(38,2), pieces long, paid boolean, tags array<string>, note string, "
    "address struct<city: string, zip: string>"
)


@pipeline
def copy(records: DataFrame) -> DataStreamWriter:
    changes = decode.dynamodb(records, ITEM, keys=["id"])
    return changes.writeStream.queryName("copy").foreachBatch(sinks.overwrite_items("out/copy"))
