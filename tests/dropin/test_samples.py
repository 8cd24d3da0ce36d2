"""The libraries' sample files start the real daemon with that library's processor, as they are and fully switched on.

The launchers of the libraries start it, too, when their `java` is this program.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final

import psutil
import pytest

from kcl_local.demo.check import DIRECTORY_VARIABLE, LedgerReader
from tests.dropin.libraries import LIBRARIES, Library
from tests.dropin.obtain import kcl_for_node, kclpy
from tests.dropin.resharding import is_finished, split
from tests.dropin.samples import SAMPLES, uncommented
from tests.process.daemon import ROOT, Application, Daemon, application, run_daemon, wait_until
from tests.process.local import Local

pytestmark = pytest.mark.timeout(300)

PROGRAM: Final = Path(sysconfig.get_path("scripts")) / "kcl-daemon"
BY_NAME: Final = {library.name: library for library in LIBRARIES}
RUNS: Final = {
    "python": BY_NAME["Python v3"],
    "node": BY_NAME["Node v2"],
    "node click stream": BY_NAME["Node v1"],
    "ruby": BY_NAME["Ruby*"],
    "dotnet": BY_NAME[".NET*"],
    "ci": BY_NAME["Python v2"],
}
# What is not in any sample: the addresses of the local endpoints come by the environment, and quick polling.
LOCAL: Final = "retrievalMode = POLLING\nidleTimeBetweenReadsInMillis = 250\n"


def write(app: Application, sample: str, program: str, *, whole: bool = False) -> str:
    """Write a sample file; its name."""
    text = uncommented(SAMPLES[sample]) if whole else SAMPLES[sample]
    arn = app.kinesis.describe_stream_summary(StreamName=app.name)["StreamDescriptionSummary"]["StreamARN"]
    filled = text.format(program=program, stream=app.name, application=app.name, account=arn.split(":")[4])
    (app.directory / "app.properties").write_text(filled + ("" if whole else LOCAL), "ascii")
    return "app.properties"


def ledgers(app: Application) -> Path:
    """Where the processors write theirs."""
    folder = app.directory / "ledgers" / "worker"
    folder.mkdir(parents=True, exist_ok=True)
    app._readers["worker"] = LedgerReader(folder)
    return folder


def environment(app: Application) -> dict[str, str]:
    """What leads the daemon to the local endpoints."""
    local = app.local
    return {
        **local.environment,
        "AWS_ENDPOINT_URL_KINESIS": local.kinesis_url,
        "AWS_ENDPOINT_URL_DYNAMODB": local.dynamodb_url,
        DIRECTORY_VARIABLE: str(ledgers(app)),
    }


def consume(app: Application, daemon: Daemon) -> None:
    """Everything arrives, then it stops well."""
    app._daemons.append(daemon)
    app.wait_done()
    daemon.stop()
    app.assert_account(repeated=0)


@pytest.mark.parametrize("sample", sorted(SAMPLES))
def test_a_sample_file_starts_the_daemon_with_that_librarys_processor(
    local: Local, tmp_path: Path, sample: str
) -> None:
    with application(local, tmp_path, f"sample-{sample.replace(' ', '-')}", shards=1) as app:
        app.put(10)
        file = write(app, sample, RUNS[sample].command())
        with run_daemon(tmp_path, "--properties", file, environment=environment(app)) as daemon:
            consume(app, daemon)
        assert not daemon.named("unknown_property")


@pytest.mark.parametrize("sample", ["python", "node"])
def test_everything_that_a_sample_shows_can_be_switched_on(local: Local, tmp_path: Path, sample: str) -> None:
    library: Library = RUNS[sample]
    with application(local, tmp_path, f"whole-{sample}", shards=1) as app:
        file = write(app, sample, library.command(), whole=True)
        text = (tmp_path / file).read_text().replace("initialPositionInStreamExtended = 1636609142\n", "")
        (tmp_path / file).write_text(text)
        app.put(10)
        with run_daemon(tmp_path, "--properties", file, environment=environment(app)) as daemon:
            consume(app, daemon)
        assert not daemon.named("unknown_property")


def test_the_sample_processor_of_amazon_kclpy_runs_unmodified(local: Local, tmp_path: Path) -> None:
    """Started by its bare name, from PATH, as after an installation."""
    folder = kclpy()
    script = tmp_path / "bin" / "sample_kclpy_app.py"
    script.parent.mkdir()
    source = (folder / "samples" / "sample_kclpy_app.py").read_text("utf-8")
    script.write_text(f"#!{sys.executable}\n" + source.partition("\n")[2], "utf-8")
    script.chmod(0o755)
    with application(local, tmp_path, "sample-unmodified", shards=1) as app:
        app.put(10)
        file = write(app, "python", script.name)
        around = {
            **environment(app),
            "PATH": f"{script.parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(folder),
        }
        with run_daemon(tmp_path, "--properties", file, environment=around) as daemon:
            daemon.wait_for("child_started")
            (shard,) = app.shards()
            split(app, shard["ShardId"], open_then=2)
            wait_until(lambda: is_finished(app, shard["ShardId"]), "the shard is finished")
            daemon.wait_for("child_started", times=3)
            daemon.stop()
        assert said(daemon, "Record (Partition Key") == 10
        assert not daemon.named("child_failed")


def said(daemon: Daemon, text: str) -> int:
    """How often the child has written this to stderr; it ends no line."""
    return sum(event["line"].count(text) for event in daemon.named("child_stderr"))


def test_the_helper_of_amazon_kclpy_prints_a_command_that_starts_this_daemon(
    local: Local, tmp_path: Path
) -> None:
    """The real helper, unmodified, with this program as its `java`; and its command in a shell."""
    folder = kclpy()
    with application(local, tmp_path, "launcher-python", shards=1) as app:
        app.put(5)
        file = write(app, "python", RUNS["python"].command())
        printed = subprocess.run(
            [
                sys.executable,
                str(folder / "samples" / "amazon_kclpy_helper.py"),
                "--print_command",
                "--java",
                str(PROGRAM),
                "--properties",
                file,
            ],
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(folder)},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout.strip()
        assert printed.startswith(f"{PROGRAM} -cp ")
        launch(app, ["sh", "-c", f"exec {printed}"])


def test_the_bootstrap_of_node_starts_this_daemon(local: Local, tmp_path: Path) -> None:
    """The real kcl-bootstrap, with this program as its `java`; the jars that it would download are there, empty."""
    folder = kcl_for_node()
    jars = tmp_path / "jars"
    jars.mkdir()
    for name, version in packages_of_java(folder / "pom.xml"):
        (jars / f"{name}-{version}.jar").touch()
    with application(local, tmp_path, "launcher-node", shards=1) as app:
        app.put(5)
        file = write(app, "node", RUNS["node"].command())
        script = str(folder / "bin" / "kcl-bootstrap")
        words = ["--properties", file, "--java", str(PROGRAM), "--jar-path", str(jars), "--execute"]
        launch(app, ["node", script, *words])


def packages_of_java(pom: Path) -> list[tuple[str, str]]:
    """What kcl-bootstrap looks for: artifact and version of each dependency."""
    text = pom.read_text("utf-8")
    versions = dict(re.findall(r"<([a-z.-]+version)>([^<]+)</", text))
    pairs = re.findall(r"<artifactId>([^<]+)</artifactId>\s*<version>([^<]+)</version>", text)
    return [
        (name, re.sub(r"\$\{([^}]+)\}", lambda match: versions[match[1]], version)) for name, version in pairs
    ]


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["-p"], id="-p"),
        pytest.param(["--properties-file"], id="--properties-file", marks=pytest.mark.prove),
        pytest.param([], id="alone", marks=pytest.mark.prove),
    ],
)
def test_the_launchers_of_ruby_and_dotnet_start_this_daemon(
    local: Local, tmp_path: Path, words: list[str]
) -> None:
    """Ruby's rake runs JAVA_HOME/bin/java; .NET's Bootstrap asks for a version first and then says -p."""
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.symlink_to(PROGRAM)
    asked = subprocess.run([java, "-version"], capture_output=True, text=True, check=True, timeout=60)
    assert asked.stdout.startswith("kcl-daemon ")
    name = f"launcher-ruby-{len(''.join(words))}"
    with application(local, tmp_path, name, shards=1) as app:
        app.put(5)
        file = write(app, "ruby", RUNS["ruby"].command())
        main = "software.amazon.kinesis.multilang.MultiLangDaemon"
        launch(app, [str(java), "-Xmx64m", "-cp", "x.jar", main, *words, file])


def launch(app: Application, command: list[str]) -> None:
    """Run a command that is, or starts, the daemon, and consume everything with it."""
    assert shutil.which(command[0]) is not None
    around = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    with subprocess.Popen(
        command,
        cwd=app.directory,
        env={**around, "PYTHONPATH": str(ROOT), **environment(app)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        daemon = Daemon(process, 0.0)
        try:
            app.wait_done()
            daemon.assert_running()
            # Launchers pass no signal on: it goes to the daemon itself.
            started = psutil.Process(process.pid).children()
            itself = next((each.pid for each in started if str(PROGRAM) in each.cmdline()), process.pid)
            os.kill(itself, signal.SIGTERM)
            assert daemon.end() == 0, daemon.tail()
        finally:
            daemon.close()
    assert daemon.named("daemon_stopped")
    assert daemon.named("java_arguments_ignored")
    app.assert_account(repeated=0)
