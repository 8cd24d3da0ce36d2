"""Spark's own programs find the data source `kcl`, without a line of Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyarrow import parquet as _parquet

from kcl_spark.session import find_java
from tests.spark.daemon import ROOT
from tests.spark.landed import Landed, name

parquet: Any = _parquet


def ran(program: str, *words: str, folder: Path) -> str:
    """What a program of Spark prints; it begins in `folder`, where its tables will be."""
    home = Path(pyspark.__file__).parent
    java = find_java(os.environ, folder / "java").home
    done = subprocess.run(
        [str(home / "bin" / program), *words],
        cwd=folder,
        env={**os.environ, "SPARK_HOME": str(home), "JAVA_HOME": str(java), "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def in_python(code: str, given: bytes = b"") -> bytes:
    """What a Python of its own, as Spark's workers are, writes."""
    begin = "import sys\nfrom pyspark import cloudpickle\n"
    words = [sys.executable, "-c", begin + code]
    done = subprocess.run(words, input=given, capture_output=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_data_source_is_sent_to_executors_by_value() -> None:
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
    settings = ["spark.ui.enabled=false", "spark.driver.memory=600m", "spark.sql.shuffle.partitions=2"]
    settings += ["spark.driver.host=127.0.0.1", "spark.driver.bindAddress=127.0.0.1"]
    words = ["--master", "local[2]", *(word for each in settings for word in ("--conf", each))]
    table = f"CREATE TABLE orders USING kcl OPTIONS (path '{log.folder}')"
    said = ran("spark-sql", *words, "-e", f"{table}; SELECT count(*) FROM orders", folder=tmp_path)
    assert said.split() == ["81"]


def documented_pipeline() -> str:
    text = (ROOT / "docs" / "landing.md").read_text("utf-8").partition("**Declarative pipelines**")[2]
    return text.partition("```python\n")[2].partition("```")[0]


@pytest.mark.prove
@pytest.mark.timeout(600)
def test_a_declarative_pipeline_has_streaming_tables_of_a_log(tmp_path: Path) -> None:
    """That of docs/landing.md. Spark keeps its tables below the folder that it was begun in."""
    log = Landed(tmp_path / "log")
    for shard in (0, 1):
        log.add(shard, 40 + shard)
    code = tmp_path / "code"
    code.mkdir()
    (code / "orders.py").write_text(
        documented_pipeline().replace("s3://my-bucket/landing", str(log.folder)), "utf-8"
    )
    (code / "keys.sql").write_text(
        "CREATE STREAMING TABLE keys AS SELECT partition_key FROM STREAM orders;", "ascii"
    )
    spec = tmp_path / "spark-pipeline.yml"
    spec.write_text(
        f"name: shop\nstorage: file://{tmp_path}/storage\nlibraries: [{{glob: {{include: code/**}}}}]\n",
        "utf-8",
    )
    ran("spark-pipelines", "run", "--spec", str(spec), folder=tmp_path)
    tables = tmp_path / "spark-warehouse"
    counts = parquet.read_table(tables / "shards").to_pylist()
    assert {row["shard_id"]: row["count"] for row in counts} == {name(0): 40, name(1): 41}
    assert parquet.read_table(tables / "keys").num_rows == 81
