"""Spark elsewhere than in the engine: a standalone cluster, a server of Spark Connect; from the pip package, on loopback.

Both run with a Python path of their own: what they know of this repository they were sent by the engine.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pyspark

from kcl_landing.control import monotonic_s, pause
from kcl_spark.session import find_java, lean_home
from tests.ports import free_port

HOME = Path(pyspark.__file__).parent
WITHIN_S = 120
WORKER_MEMORY = "700m"


def environment(folder: Path, more: Mapping[str, str]) -> dict[str, str]:
    """Nothing of this repository can be imported there."""
    for name in ("kcl_spark", "jobs"):
        module = folder / "elsewhere" / f"{name}.py"
        module.parent.mkdir(exist_ok=True)
        module.write_text(f"raise ImportError('{name} is not installed here')\n")
    kept = dict(os.environ)
    return {
        **kept,
        "JAVA_HOME": str(find_java(os.environ, folder / "java").home),
        # Without Spark's archive of Python: on a busy machine its workers would start too slowly.
        "SPARK_HOME": str(lean_home(folder / "home")),
        "PYTHONPATH": str(folder / "elsewhere"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        **more,
    }


@contextmanager
def process(folder: Path, name: str, *command: str, **more: str) -> Generator[subprocess.Popen[bytes]]:
    """A program of Spark, ended by its number."""
    home = folder / name
    home.mkdir(parents=True)
    with (home / "log").open("wb") as log:
        running = subprocess.Popen(
            command, cwd=home, env=environment(folder, more), stdout=log, stderr=subprocess.STDOUT
        )
        try:
            yield running
        finally:
            running.terminate()
            try:
                running.wait(20)
            except subprocess.TimeoutExpired:
                running.kill()
                running.wait(20)


def wait_for_port(port: int, running: subprocess.Popen[bytes]) -> None:
    deadline_s = monotonic_s() + WITHIN_S
    while monotonic_s() < deadline_s:
        assert running.poll() is None, f"{running.args!r} ended"
        with closing(socket.socket()) as each:
            if each.connect_ex(("127.0.0.1", port)) == 0:
                return
        pause(0.1)
    raise AssertionError(f"nothing listens on {port}")


@contextmanager
def standalone_cluster(folder: Path, *, workers: int = 2) -> Generator[str]:
    """A master and workers of a core each; the master's address."""
    port = free_port()
    spark_class = str(HOME / "bin" / "spark-class")
    with ExitStack() as running:
        master = running.enter_context(
            process(
                folder,
                "master",
                spark_class,
                "org.apache.spark.deploy.master.Master",
                *("--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"),
                SPARK_DAEMON_MEMORY="256m",
            )
        )
        wait_for_port(port, master)
        for number in range(workers):
            running.enter_context(
                process(
                    folder,
                    f"worker-{number}",
                    spark_class,
                    "org.apache.spark.deploy.worker.Worker",
                    *("--host", "127.0.0.1", "--cores", "1", "--memory", WORKER_MEMORY, "--webui-port", "0"),
                    *("--work-dir", str(folder / f"worker-{number}"), f"spark://127.0.0.1:{port}"),
                    SPARK_DAEMON_MEMORY="256m",
                )
            )
        yield f"spark://127.0.0.1:{port}"


@contextmanager
def connect_server(folder: Path) -> Generator[str]:
    """A server of Spark Connect with Spark in itself; its address."""
    port = free_port()
    command = (
        *(str(HOME / "bin" / "spark-submit"), "--master", "local[2]", "--driver-memory", "700m"),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        *("--conf", "spark.connect.grpc.binding.address=127.0.0.1"),
        *("--conf", f"spark.connect.grpc.binding.port={port}"),
        *("--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=2"),
        *("--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1"),
        "spark-internal",
    )
    with process(folder, "server", *command) as server:
        wait_for_port(port, server)
        yield f"sc://127.0.0.1:{port}"
