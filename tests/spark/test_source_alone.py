"""The data source `kcl` is one file that older Pythons and Sparks can load."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import kcl_spark_source
from tests.spark.landed import BEGIN_MS, Landed
from tests.spark.million import measured, segments

FILE = Path(kcl_spark_source.__file__)
OUTSIDE = {"pyarrow", "pyspark"}
FOR_CLOUDWATCH = {"boto3", "botocore"}


def test_it_is_python_3_9_and_imports_nothing_else_but_boto3_for_whoever_asks_for_cloudwatch() -> None:
    tree = ast.parse(FILE.read_text("utf-8"), feature_version=(3, 9))
    names = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        for name in (
            [each.name for each in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert names - set(sys.stdlib_module_names) == OUTSIDE | FOR_CLOUDWATCH
    first = [each for each in tree.body if isinstance(each, (ast.Import, ast.ImportFrom))]
    assert not [each for each in first if any(name in ast.unparse(each) for name in FOR_CLOUDWATCH)]


def test_it_loads_where_spark_has_no_admission_control() -> None:
    """Spark 4.0 and 4.1 have no such module."""
    code = (
        "import sys; sys.modules['pyspark.sql.streaming.datasource'] = None\n"
        "import types; import pyspark.sql.streaming\n"
        "whole = types.ModuleType('pyspark.sql.datasource')\n"
        "for name in ('DataSource', 'DataSourceReader', 'DataSourceStreamReader', 'InputPartition'):\n"
        "    setattr(whole, name, type(name, (), {'__init__': lambda self, *given: None}))\n"
        "sys.modules['pyspark.sql.datasource'] = whole\n"
        "import kcl_spark_source\n"
        "print(kcl_spark_source.KclDataSource.name())\n"
    )
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, cwd=FILE.parent, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout == "kcl\n", done.stderr


def test_a_task_does_without_pandas_which_takes_longer_to_import_than_a_gigabyte_to_read(
    tmp_path: Path,
) -> None:
    Landed(tmp_path).add(0, 100)
    code = (
        "import sys, kcl_spark_source as source\n"
        "from pyspark.sql.types import StringType, StructType\n"
        f"options = {{'path': {str(tmp_path)!r}, 'startingTimestamp': '{BEGIN_MS}', 'endingTimestamp': '{BEGIN_MS + 500}'}}\n"
        "schema = StructType([field for name in source._NAMES for field in StructType().add(name, StringType())])\n"
        "reader = source.KclDataSource(options).reader(schema)\n"
        f"tasks = [*reader.partitions(), source.Idle({BEGIN_MS})]\n"
        "print([batch.num_rows for task in tasks for batch in reader.read(task)], 'pandas' in sys.modules)\n"
    )
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, cwd=FILE.parent, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout == "[50, 1] False\n", done.stderr


def test_a_batch_over_a_million_segments_is_planned_fast(tmp_path: Path) -> None:
    """At most 0.5 s where nothing else runs; seconds of CPU say it where something does."""
    for text, (count, took_s, cpu_s) in measured(tmp_path / "log").items():
        print(f"{text}: {count} of {segments()} segments planned in {took_s:.2f} s, {cpu_s:.2f} s of CPU")  # noqa: T201
        assert count == 4096
        assert cpu_s < 2.0
