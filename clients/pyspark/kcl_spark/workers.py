"""The process that Spark forks Python workers from, with what all of them import: they share its memory."""

from __future__ import annotations

import gc

import pyarrow.compute  # noqa: F401
import pyspark.sql.worker.plan_data_source_read
import pyspark.worker  # noqa: F401
from pyspark import daemon

import kcl_spark.source  # noqa: F401

if __name__ == "__main__":
    gc.freeze()  # collections in a worker would copy the pages
    daemon.manager()
