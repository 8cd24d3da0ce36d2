"""Small engines stay small, and whoever chose otherwise is heeded."""

from __future__ import annotations

from pathlib import Path

import pyspark
import pytest

from kcl_spark.session import lean_home, small_jvm

DEFAULT = "spark.driver.defaultJavaOptions"
OWN = "spark.driver.extraJavaOptions"


@pytest.mark.parametrize(
    ("memory", "small"), [("1g", True), ("600m", True), ("2G", True), ("3g", False), ("1t", False)]
)
def test_a_large_heap_keeps_its_parallel_collector(memory: str, *, small: bool) -> None:
    assert ("-XX:+UseSerialGC" in small_jvm(memory, {}).get(DEFAULT, "")) is small


def test_a_collector_that_is_chosen_stays_alone() -> None:
    """Two of them, and Java does not start."""
    assert "UseSerialGC" in small_jvm("1g", {OWN: "-Dcolour=red"})[DEFAULT]
    assert "UseSerialGC" not in small_jvm("1g", {OWN: "-Da=b -XX:+UseG1GC"})[DEFAULT]
    assert small_jvm("1g", {DEFAULT: "-Da=b"}) == {}


def test_the_home_has_all_of_sparks_but_the_archive_of_python(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "jars").symlink_to(tmp_path / "of an older version")
    assert lean_home(tmp_path / "home") == lean_home(tmp_path / "home")
    home = tmp_path / "home"
    real = Path(pyspark.__file__).parent
    assert (home / "jars").resolve() == (real / "jars").resolve()
    assert (home / "bin" / "spark-submit").exists()
    assert not (home / "python").exists()
