"""`kcl-daemon spark-submit`: what the user's `spark-submit` is given, by a program that notes it."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest
from click.testing import CliRunner, Result

from kcl_daemon.cli import main
from kcl_daemon.cli.spark_submit import SHIPPED, CannotSubmit, find_program

_PROPERTIES = """\
streamName = orders
applicationName = the.shop
regionName = eu-west-1
landing = s3://bucket/landing
sparkPipeline = orders.jobs:totals
sparkStateDir = s3a://bucket/state
"""
_NOTING = """\
#!{python}
import json, shutil, sys
shutil.copy(sys.argv[-1], "main.py")
archive = sys.argv[sys.argv.index("--py-files") + 1].split(",")[0]
shutil.copy(archive, "archive.zip")
json.dump(sys.argv[1:], open("noted", "w"))
sys.exit({code})
"""
Submit = Callable[..., Result]


@pytest.fixture
def submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Submit:
    """Runs the command in a folder with a package `orders`, for a Spark that ends with a code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    package = tmp_path / "orders"
    package.mkdir()
    for name in ("__init__.py", "jobs.py", "rates.json"):
        (package / name).write_text("")
    program = tmp_path / "spark" / "bin" / "spark-submit"
    program.parent.mkdir(parents=True)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))

    def run(*words: str, more: str = "", code: int = 0) -> Result:
        program.write_text(_NOTING.format(python=sys.executable, code=code))
        program.chmod(0o755)
        (tmp_path / "app.properties").write_text(_PROPERTIES + more)
        monkeypatch.setattr("signal.signal", lambda *_: None)
        return CliRunner().invoke(main, ["spark-submit", "app.properties", *words])

    return run


def arguments_of(source: str) -> dict[str, object]:
    """The arguments of `run` in the program."""
    call = next(
        each
        for each in ast.walk(ast.parse(source))
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id == "run"
    )
    return {str(each.arg): ast.literal_eval(each.value) for each in call.keywords if each.arg != "spark"}


def test_the_users_spark_gets_the_program_and_what_it_needs(submit: Submit) -> None:
    more = "sparkConf.spark.sql.shuffle.partitions = 8\nsparkPackages = a:b:1\nsparkDriverMemory = 2g\n"
    extra = ("--", "--num-executors", "4", "--py-files", "theirs.zip")
    done = submit("--master", "yarn", "--deploy-mode", "cluster", *extra, more=more)
    assert done.exit_code == 0, done.output
    noted: list[str] = json.loads(Path("noted").read_text())
    assert noted[:2] == ["--master=yarn", "--deploy-mode=cluster"]
    assert noted[2:10] == [
        *("--name", "the.shop", "--driver-memory", "2g", "--packages", "a:b:1"),
        *("--conf", "spark.sql.session.timeZone=UTC"),
    ]
    assert noted[10:13] == ["--conf", "spark.sql.shuffle.partitions=8", "--py-files"]
    assert noted[13].endswith("/kcl_spark.zip,theirs.zip")
    assert noted[14:16] == ["--num-executors", "4"]
    assert Path(noted[16]).name == "the_shop.py"
    assert not Path(noted[16]).exists(), "what was made for one run is removed after it"
    assert arguments_of(Path("main.py").read_text()) == {
        "pipeline": "orders.jobs:totals",
        "landing": "s3://bucket/landing",
        "checkpoint": "s3a://bucket/state",
        "stream": "orders",
    }
    names = ZipFile("archive.zip").namelist()
    assert {f"kcl_spark/{name}.py" for name in SHIPPED} | {"kcl_spark_source.py"} <= set(names)
    assert {"orders/__init__.py", "orders/jobs.py", "orders/rates.json"} <= set(names)
    assert not any(name.startswith(("kcl_landing", "kcl_spark/engine")) for name in names)


def test_trigger_columns_and_limits_of_the_file_are_passed_to_the_queries(submit: Submit) -> None:
    more = "sparkTrigger = 30 seconds\nsparkColumns = aws\nsparkMaxBytesPerTrigger = 1000000\nlandingEndpoint = http://minio:9000\n"
    assert submit(more=more).exit_code == 0
    said = arguments_of(Path("main.py").read_text())
    assert (said["trigger"], said["columns"]) == ("30 seconds", "aws")
    assert said["options"] == {"maxBytesPerTrigger": "1000000", "endpoint": "http://minio:9000"}


def test_folders_of_this_machine_are_absolute_in_the_program(submit: Submit, tmp_path: Path) -> None:
    assert submit(more="landing = landed\nsparkStateDir = state\n").exit_code == 0
    said = arguments_of(Path("main.py").read_text())
    assert (said["landing"], said["checkpoint"]) == (str(tmp_path / "landed"), str(tmp_path / "state"))


def test_the_exit_code_is_that_of_spark(submit: Submit) -> None:
    assert submit(code=3).exit_code == 3


def test_nothing_starts_with_dry_run_and_write(submit: Submit, tmp_path: Path) -> None:
    shown = submit("--dry-run")
    assert "spark-submit --name the.shop" in shown.output
    assert arguments_of(shown.output.partition("\n\n")[2])["stream"] == "orders"
    written = submit("--write", "made")
    assert written.output.splitlines()[0].endswith("made/the_shop.py")
    assert sorted(each.name for each in (tmp_path / "made").iterdir()) == ["kcl_spark.zip", "the_shop.py"]
    assert not Path("noted").exists()


@pytest.mark.parametrize(
    ("more", "words", "said"),
    [
        (
            "sparkStateDir = state\n",
            ["--master", "yarn"],
            "sparkStateDir = state: a folder below the working",
        ),
        ("landing = landed\n", ["--deploy-mode", "cluster"], "landing = landed: a folder below the working"),
        ("sparkPipeline = absent:totals\n", [], "there is no module 'absent'"),
        ("sparkTrigger = soon\n", [], "sparkTrigger"),
    ],
)
def test_a_pipeline_that_cannot_run_on_a_cluster_is_refused_and_nothing_is_submitted(
    submit: Submit, more: str, words: list[str], said: str
) -> None:
    done = submit(*words, more=more)
    assert done.exit_code == 2
    assert said in done.stderr
    assert not Path("noted").exists()


@pytest.mark.parametrize(
    ("missing", "said"), [("landing", "has no landing"), ("sparkPipeline", "has no sparkPipeline")]
)
def test_a_property_that_spark_submit_needs_and_the_file_lacks_is_named(
    submit: Submit, tmp_path: Path, missing: str, said: str
) -> None:
    submit()
    lines = [
        each for each in _PROPERTIES.splitlines() if not each.startswith((missing, "sparkStateDir"))
    ]  # without landing Spark is beside the daemon, where a URI is refused
    (tmp_path / "other.properties").write_text("\n".join(lines))
    done = CliRunner().invoke(main, ["spark-submit", "-p", "other.properties"])
    assert done.exit_code == 2
    assert said in done.stderr


def test_spark_submit_is_found_or_it_is_said_where_it_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "spark-submit"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert find_program({"PATH": str(tmp_path)})[0] == str(program)
    with pytest.raises(CannotSubmit, match="SPARK_HOME is /nowhere"):
        find_program({"SPARK_HOME": "/nowhere"})
    bundled, environment = find_program({"PATH": "/nowhere"})
    assert bundled == f"{environment['SPARK_HOME']}/bin/spark-submit"
    assert environment["PYSPARK_PYTHON"] == sys.executable
    monkeypatch.setattr("kcl_daemon.cli.spark_submit.find_spec", lambda _name: None)
    with pytest.raises(CannotSubmit, match="pip install pyspark"):
        find_program({"PATH": "/nowhere"})


def test_the_archive_for_the_cluster_is_imported_without_other_packages_of_ours(
    submit: Submit, tmp_path: Path
) -> None:
    """In a process that finds only the archive, pyspark and pyarrow."""
    submit("--write", "made")
    for name in ("kcl_landing", "kcl_protocol", "msgspec", "orjson", "kcl_daemon"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('{name} is not on clusters')")
    program = (
        f"import sys; sys.path[:0] = [{str(tmp_path / 'made' / 'kcl_spark.zip')!r}, {str(tmp_path)!r}]\n"
        "import kcl_spark, orders.jobs\n"
        "print(kcl_spark.__file__, *[getattr(kcl_spark, name) for name in kcl_spark.__all__])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "kcl_spark.zip" in done.stdout


def test_files_for_the_cluster_are_written_in_python_3_9() -> None:
    folder = Path(sys.modules["kcl_daemon"].__file__ or "").parents[2] / "clients" / "pyspark"
    newer = {"slots", "kw_only", "strict"}
    for path in [*(folder / "kcl_spark" / f"{name}.py" for name in SHIPPED), folder / "kcl_spark_source.py"]:
        tree = ast.parse(path.read_text("utf-8"), feature_version=(3, 9))
        used = {each.arg for each in ast.walk(tree) if isinstance(each, ast.keyword)}
        assert not newer & used, f"{path.name}: {newer & used} is newer than Python 3.9"
