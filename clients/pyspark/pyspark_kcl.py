"""Makes `format("kcl")` known to Spark 4 wherever the driver can import this file, beside `kcl_spark_source`.

Spark asks each module named `pyspark_*` for a `DefaultSource`, once. So `spark-sql`, Thrift and Connect servers read a
landing log without `kcl_spark_source.register`. What `register` knows besides, the cores, comes from `minTasks` then.
"""

from __future__ import annotations

from typing import Any

from pyspark import cloudpickle

import kcl_spark_source
from kcl_spark_source import KclDataSource as DefaultSource

__all__ = ["DefaultSource"]

# Executors need pyarrow only.
_by_value: Any = cloudpickle.register_pickle_by_value
_by_value(kcl_spark_source)
