"""Fixtures of the Spark tier: one session for all tests that need a JVM in this process."""

from __future__ import annotations

import os
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from pyspark.sql import SparkSession

from kcl_daemon.spark import SparkEngine
from kcl_spark.session import EngineOptions, build_session, parse, prepare_environment
from tests.spark.daemon import QUICK, SETTINGS
from tests.spark.parts import no_tell


@pytest.fixture(autouse=True)
def shipped_by_no_test_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules that one test sends by value, with all that they refer to, are not sent so by the next."""
    monkeypatch.setattr("pyspark.cloudpickle.cloudpickle._PICKLE_BY_VALUE_MODULES", set[str]())


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Generator[SparkSession, None, None]:
    """A small local session as an engine builds it, with the data source."""
    folder = tmp_path_factory.mktemp("spark")
    options = replace(
        parse(SparkEngine.options(SETTINGS, folder / "unused")),
        state_dir=str(folder),
        conf={**QUICK, "spark.sql.warehouse.dir": str(folder / "warehouse")},
    )
    workers = {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local"}
    with mock.patch.dict(os.environ, workers):
        prepare_environment(options, no_tell)
        session = build_session(options)
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def spark_of_engines(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Generator[SparkSession, None, None]:
    """Engines in threads take the one session and leave it running; pipelines find their files in `tmp_path`."""

    def nothing(*_given: object) -> None:
        """The session is there, and stays."""

    def the_session(_options: EngineOptions) -> SparkSession:
        return spark

    with monkeypatch.context() as patch:
        patch.setattr("kcl_spark.engine.prepare_environment", nothing)
        patch.setattr("kcl_spark.engine.build_session", the_session)
        patch.setattr(SparkSession, "stop", nothing)
        patch.setattr("kcl_spark.figures.FIGURES_S", 0.3)
        patch.setattr("kcl_spark.figures.QUIET_S", 1.0)
        patch.chdir(tmp_path)
        yield spark
