"""Spark's own shells find the data source `kcl`, without a line of Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from tests.spark.landed import Landed


def in_spark_sql(statements: str, folder: Path) -> list[str]:
    """What `spark-sql -e` prints; it begins in `folder`, where its metastore will be."""
    home = Path(pyspark.__file__).parent
    settings = ["spark.ui.enabled=false", "spark.driver.memory=600m", "spark.sql.shuffle.partitions=2"]
    settings += ["spark.driver.host=127.0.0.1", "spark.driver.bindAddress=127.0.0.1"]
    words = ["--master", "local[2]", *(word for each in settings for word in ("--conf", each))]
    done = subprocess.run(
        [str(home / "bin" / "spark-sql"), *words, "-e", statements],
        cwd=folder,
        env={**os.environ, "SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.split()


def in_python(code: str, given: bytes = b"") -> bytes:
    """What a Python of its own, as Spark's workers are, writes."""
    begin = "import sys\nfrom pyspark import cloudpickle\n"
    words = [sys.executable, "-c", begin + code]
    done = subprocess.run(words, input=given, capture_output=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_spark_finds_is_sent_to_executors_by_value() -> None:
    sent = in_python(
        "import pyspark_kcl\nsys.stdout.buffer.write(cloudpickle.dumps(pyspark_kcl.DefaultSource))"
    )
    there = (
        "sys.modules['kcl_spark_source'] = sys.modules['pyspark_kcl'] = None\n"
        "print(cloudpickle.loads(sys.stdin.buffer.read()).name())"
    )
    assert in_python(there, sent) == b"kcl\n"


@pytest.mark.prove
@pytest.mark.timeout(600)
def test_spark_sql_counts_the_records_of_a_log(tmp_path: Path) -> None:
    log = Landed(tmp_path / "log")
    for shard in (0, 1):
        log.add(shard, 40 + shard)
    view = f"CREATE TEMPORARY VIEW orders USING kcl OPTIONS (path '{log.folder}')"
    assert in_spark_sql(f"{view}; SELECT count(*) FROM orders", tmp_path) == ["81"]
