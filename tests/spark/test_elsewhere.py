"""Spark elsewhere reads the landing log: a standalone cluster, a server of Spark Connect, and Spark 3.5 of its own.

Neither finds anything of this repository but what is sent to it. Counts are those of pyarrow over the same log.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pyspark
import pytest

from kcl_landing.control import monotonic_s, pause
from kcl_local.dynamodb import DynamoDbServer
from kcl_spark.session import find_java
from tests.ports import free_port
from tests.spark import elsewhere
from tests.spark.cluster import WORKER_MEMORY, connect_server, environment, process, standalone_cluster
from tests.spark.daemon import ROOT
from tests.spark.logs import Landing, counted, texts
from tests.spark.test_application import CHILD, OTHER, PARENT, expected_windows, windows

OF_3_5 = Path(os.environ.get("KCL_SPARK35", ROOT / "build" / "spark35"))
JAVA_OF_3_5 = 17
WITHIN_S = 400
CONF = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": WORKER_MEMORY,
}
PROPERTIES = """\
applicationName = shop
streamName = orders
regionName = eu-west-1
landing = {folder}/landed
landingLayout = {layout}
sparkPipeline = elsewhere:everything
sparkStateDir = {folder}/state
sparkTrigger = {trigger}
sparkDriverMemory = 600m
"""
NOTEBOOK = """\
import sys
from pyspark.sql import SparkSession
from kcl_spark import run, sinks

spark = SparkSession.builder{session}.getOrCreate()
given = {{"landing": "{folder}/landed", "checkpoint": "{folder}/state", "stream": "orders", "trigger": sys.argv[1]}}
{plain}
run("elsewhere:everything", spark=spark, **given, options={options}).await_termination()
{end}
"""
PLAIN = """\
records = spark.readStream.schema("data binary, shard_id string").option("maxFilesPerTrigger", "4")
texts = records.parquet("{folder}/landed/orders").selectExpr("cast(data as string) as text")
writer = texts.writeStream.foreachBatch(sinks.overwrite_batch("{folder}/out/plain"))
ends = {{"availableNow": True}} if sys.argv[1] == "availableNow" else {{"processingTime": sys.argv[1]}}
plain = writer.option("checkpointLocation", "{folder}/state-plain").trigger(**ends).start()
"""
PROGRAM = """\
import sys
from pyspark.sql import SparkSession
import kcl_spark_source

spark = SparkSession.builder.getOrCreate()
kcl_spark_source.register(spark)
records = spark.readStream.format("kcl").option("path", sys.argv[1]).option("stream", "orders").load()
texts = records.selectExpr("cast(data as string) as text")
writer = texts.writeStream.queryName("submitted").format("parquet").option("path", sys.argv[2])
writer.option("checkpointLocation", sys.argv[3]).start().awaitTermination()
"""
_NO_LAG = 'kcl_source_lag_segments{query="submitted"} 0\n'

pytestmark = [pytest.mark.prove, pytest.mark.timeout(900)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the user is, with the pipeline's module and nothing of ours."""
    shutil.copy(Path(elsewhere.__file__), tmp_path / "elsewhere.py")
    return tmp_path


def land(folder: Path, layout: str = "dated") -> Landing:
    landing = Landing(folder / "landed", "dated" if layout == "dated" else "log")
    landing.land(PARENT, 1_500, in_segments=9, children=(CHILD,))
    landing.land(CHILD, 700, in_segments=5)
    landing.land(OTHER, 1_300, in_segments=8)
    return landing


def check(folder: Path, landing: Landing) -> None:
    assert len(landing.expected()) == counted(landing.root)
    for output in ("files", "batches"):
        assert texts(folder / "out" / output) == landing.expected(), output
    assert windows(folder / "out" / "windows") == expected_windows(landing)


def surroundings(folder: Path, **more: str) -> dict[str, str]:
    """The Python path of Spark has nothing of ours."""
    for name in ("kcl_landing", "kcl_protocol", "kcl_daemon", "msgspec", "orjson"):
        module = folder / "not_here" / f"{name}.py"
        module.parent.mkdir(exist_ok=True)
        module.write_text(f"raise ImportError('{name} is not installed here')\n")
    return environment(folder, {"KCL_TEST_OUT": str(folder / "out"), **more})


def submitted(
    folder: Path, *words: str, layout: str = "log", trigger: str = "availableNow", **more: str
) -> subprocess.Popen[bytes]:
    """`kcl-daemon spark-submit` in the user's folder."""
    (folder / "app.properties").write_text(PROPERTIES.format(folder=folder, layout=layout, trigger=trigger))
    conf = [word for name, value in CONF.items() for word in ("--conf", f"{name}={value}")]
    program = "import os, sys; path = os.environ.pop('OURS').split(os.pathsep); sys.path[:0] = path; from kcl_daemon.__main__ import main; main()"
    ours = os.pathsep.join(each for each in sys.path if each.startswith(str(ROOT)))
    command = [sys.executable, "-c", program, "spark-submit", "app.properties", *words, "--", *conf]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            command,
            cwd=folder,
            env={**surroundings(folder, **more), "OURS": ours},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def ended(start: Callable[[], subprocess.Popen[bytes]], folder: Path) -> None:
    """Started again, as a cluster manager would, if the machine is too busy: Spark gives a worker ten seconds to start."""
    code, said = -1, ""
    for _ in range(4):
        (folder / "log").write_bytes(b"")
        code = start().wait(WITHIN_S)
        said = (folder / "log").read_text()
        if code == 0 or "Python worker failed to connect back" not in said:
            break
    assert code == 0, said[-4_000:]


def test_a_standalone_cluster_runs_what_is_submitted(folder: Path) -> None:
    landing = land(folder, "log")
    with standalone_cluster(folder / "spark") as master:
        ended(lambda: submitted(folder, "--master", master), folder)
        landing.land(CHILD, 100, in_segments=2)
        ended(lambda: submitted(folder, "--master", master), folder)
    check(folder, landing)


def notebook(folder: Path, trigger: str, surroundings: dict[str, str]) -> subprocess.Popen[bytes]:
    """`notebook.py`, which finds our Spark client and nothing else of ours."""
    paths = os.pathsep.join([str(folder / "not_here"), str(folder), str(ROOT / "clients" / "pyspark")])
    command = [surroundings["PYSPARK_PYTHON"], "notebook.py", trigger]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            command,
            cwd=folder,
            env={**surroundings, "PYTHONPATH": paths},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def test_a_server_of_spark_connect_runs_the_queries(folder: Path) -> None:
    landing = land(folder, "log")
    with connect_server(folder / "spark") as remote:
        text = NOTEBOOK.format(
            session=f".remote({remote!r})",
            folder=folder,
            plain="",
            options={"maxBytesPerTrigger": "60000"},
            end="",
        )
        (folder / "notebook.py").write_text(text)
        ended(lambda: notebook(folder, "availableNow", surroundings(folder)), folder)
    check(folder, landing)


def test_a_program_that_is_submitted_brings_the_listeners_by_settings_of_spark(folder: Path) -> None:
    """As docs/landing.md says: Spark's own `spark-submit`, two `--conf`, one file; asked over HTTP while it runs."""
    landing, port = land(folder, "log"), free_port()
    (folder / "job.py").write_text(PROGRAM)
    source = ROOT / "clients" / "pyspark" / "kcl_spark_source.py"
    conf = {**CONF, "spark.kcl.listener.prometheus": str(port), "spark.kcl.listener.cloudwatch": "orders"}
    words = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    words += ["--master", "local[2]", "--driver-memory", "600m", "--py-files", str(source)]
    places = [str(folder / each) for each in ("landed", "out/files", "state")]
    around = surroundings(
        folder, AWS_ACCESS_KEY_ID="local", AWS_SECRET_ACCESS_KEY="local", AWS_REGION="us-east-1"
    )
    (folder / "elsewhere" / source.name).write_text("raise ImportError('it is not what was sent')\n")
    command = [str(Path(sys.executable).with_name("spark-submit")), *words, str(folder / "job.py"), *places]
    with DynamoDbServer() as server:
        around["AWS_ENDPOINT_URL_CLOUDWATCH"] = server.cloudwatch_url
        calls = server.cloudwatch.calls
        with process(folder, "program", *command, **around) as running:
            told = told_when(port, lambda told: _NO_LAG in told and calls["PutMetricData"] > 0, running)
    assert 'kcl_source_left_behind_shards{query="submitted"} 0\n' in told
    assert texts(folder / "out" / "files") == landing.expected()


def told_when(port: int, is_enough: Callable[[str], bool], running: subprocess.Popen[bytes]) -> str:
    """What Prometheus is told, once it is enough."""
    deadline_s, told = monotonic_s() + WITHIN_S, ""
    while monotonic_s() < deadline_s:
        assert running.poll() is None, "the program ended"
        pause(0.2)
        with suppress(URLError), urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            told = str(answer.read().decode())
            if is_enough(told):
                return told
    raise AssertionError(f"port {port} told {told!r} at last")


@pytest.fixture
def of_3_5(folder: Path) -> Generator[dict[str, str]]:
    """The environment of a Spark 3.5, which `make build/spark35.stamp` installs."""
    java = find_java(os.environ, folder / "java")
    if java.version > JAVA_OF_3_5:
        pytest.skip(
            f"not run: Spark 3.5 needs Java {JAVA_OF_3_5} at most, and here is only {java.version} ({java.source})"
        )
    if os.environ.get("KCL_TESTS_OFFLINE") == "1":
        pytest.skip("not run: it needs a Spark 3.5 from the package index")
    python = OF_3_5 / "bin" / "python"
    assert python.exists(), f"there is no {python}: run make build/spark35.stamp, or set KCL_SPARK35"
    script = "import pyspark; print(pyspark.__version__, pyspark.__path__[0])"
    found = subprocess.run([python, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert found[0].startswith("3.5."), found
    assert pyspark.__version__.startswith("4."), "and ours is another"
    yield {"SPARK_HOME": found[1], "PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}


def test_spark_3_5_reads_the_dated_layout_once_although_its_driver_is_killed(
    folder: Path, of_3_5: dict[str, str]
) -> None:
    """With `run`, with a plain file stream and `foreachBatch`, and in the end submitted."""
    landing = land(folder)
    session = (
        '.master("local[2]").config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "2")'
    )
    plain = PLAIN.format(folder=folder)
    text = NOTEBOOK.format(
        session=session,
        folder=folder,
        plain=plain,
        options={"maxFilesPerTrigger": "4"},
        end="plain.awaitTermination()",
    )
    (folder / "notebook.py").write_text(text)
    around = surroundings(folder, **of_3_5)
    for query, batch in (("batches", 1), ("files", 3)):
        with ExitStack() as ending:
            running = notebook(folder, "0 seconds", around)
            ending.callback(kill_group, running)
            wait_for_batch(folder, query, batch, running)
        landing.land(OTHER, 100, in_segments=3)
    ended(lambda: notebook(folder, "availableNow", around), folder)
    check(folder, landing)
    assert texts(folder / "out" / "plain") == landing.expected()
    landing.land(OTHER, 50)
    ended(lambda: submitted(folder, "--master", "local[2]", layout="dated", **of_3_5), folder)
    check(folder, landing)


def kill_group(running: subprocess.Popen[bytes]) -> None:
    os.killpg(running.pid, 9)
    running.wait(20)


def wait_for_batch(folder: Path, query: str, batch: int, running: subprocess.Popen[bytes]) -> None:
    """Until a batch is planned that is not committed: a kill now falls into it."""
    deadline_s = monotonic_s() + WITHIN_S
    while monotonic_s() < deadline_s:
        assert running.poll() is None, (folder / "log").read_text()[-4_000:]
        state = folder / "state" / query
        if (state / "offsets" / str(batch)).exists() and not (state / "commits" / str(batch)).exists():
            return
        pause(0.005)
    raise AssertionError(f"batch {batch} was not planned")
