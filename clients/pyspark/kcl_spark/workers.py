"""Spark forks Python workers from it: they share the memory of what is imported here."""

from __future__ import annotations

import gc
from importlib import import_module

from pyspark import daemon

for _each in (
    "pyarrow.compute",
    "pyspark.worker",
    "pyspark.sql.worker.plan_data_source_read",
    "kcl_spark.source",
):
    import_module(_each)

if __name__ == "__main__":
    gc.freeze()  # a collection would copy the pages
    daemon.manager()
