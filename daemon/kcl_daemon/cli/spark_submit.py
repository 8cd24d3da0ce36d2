"""A pipeline on the user's Spark: a small program and an archive with what a cluster needs of ours."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NoReturn
from zipfile import ZIP_DEFLATED, ZipFile

import click

from kcl_daemon.cli.common import EXIT_CONFIGURATION, chosen_file, file_option, load_file, refuse
from kcl_daemon.config.load import Loaded
from kcl_daemon.errors import ConfigurationError
from kcl_daemon.text import on_one_line

PROGRAM: Final = "spark-submit"
SHIPPED: Final = ("__init__", "api", "application", "changes", "declared", "decode", "outputs", "sinks")
_SOURCE: Final = "kcl_spark_source"
_SUFFIXES_LEFT_OUT: Final = frozenset({".pyc", ".pyo"})
_MAIN: Final = """\
# Written by kcl-daemon spark-submit.
from pyspark.sql import SparkSession

from kcl_spark import run

spark = SparkSession.builder.getOrCreate()
try:
    run(
{arguments}        spark=spark,
    ).await_termination()
finally:
    spark.stop()
"""
_EPILOG: Final = """\b
Exit codes:
  0  the pipeline has ended, or with --deploy-mode cluster was accepted
  2  wrong command line, properties file or environment
  else the exit code of spark-submit
"""


class CannotSubmit(Exception):
    pass


@click.command("spark-submit", short_help="Run the pipeline on your own Spark.", epilog=_EPILOG)
@file_option("Properties file; instead of [FILE].")
@click.option(
    "--master",
    metavar="URL",
    help="Where Spark runs: yarn, k8s://..., spark://..., local[2]. Default: what your spark-defaults.conf says.",
)
@click.option(
    "--deploy-mode",
    type=click.Choice(["client", "cluster"]),
    help="Where the driver runs: here, or on the cluster.",
)
@click.option("--dry-run", is_flag=True, help="Print the command and the program, and start nothing.")
@click.option(
    "--write",
    "folder",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write the program and the archive to DIR, for services that take them from a bucket, print the command, and "
    "start nothing.",
)
@click.argument("words", nargs=-1, metavar="[FILE] [-- ARGUMENT ...]", type=click.UNPROCESSED)
def spark_submit(
    *,
    properties_file: Path | None,
    master: str | None,
    deploy_mode: str | None,
    dry_run: bool,
    folder: Path | None,
    words: tuple[str, ...],
) -> None:
    """Start the queries of sparkPipeline with spark-submit. They read what the daemons write to `landing`.

    ARGUMENTs go to spark-submit. It is taken from SPARK_HOME, PATH, or the installed pyspark. sparkConf.*, sparkPackages, sparkDriverMemory, sparkTrigger, sparkColumns, sparkMaxBytesPerTrigger and sparkStateDir of the file are used.
    """
    file, more = (
        (properties_file, words) if properties_file else (Path(words[0]) if words else None, words[1:])
    )
    is_cluster = deploy_mode == "cluster" or not (master or "local").startswith("local")
    where = [
        f"--{name}={value}" for name, value in (("master", master), ("deploy-mode", deploy_mode)) if value
    ]
    try:
        loaded = load_file(chosen_file(file, None))
        program, environment = find_program(os.environ)
        sys.path.insert(0, str(Path.cwd()))
        source = main_program(loaded, is_cluster=is_cluster)
        with TemporaryDirectory(prefix="kcl-spark-submit-") as passing:
            files = Files.below(folder or Path(passing), loaded)
            command = [program, *where, *arguments_of(loaded, files.archive, more), str(files.main)]
            if not dry_run:
                files.write(source, str(loaded.settings.spark.pipeline))
            if not dry_run and folder is None:
                sys.exit(_wait_for(command, environment))
        click.echo(shlex.join(command) + (f"\n\n{source}" if dry_run else "\n"), nl=False)
    except ConfigurationError as error:
        refuse(error)
    except (CannotSubmit, OSError) as error:
        _refuse(str(error))


@dataclass(frozen=True, slots=True)
class Files:
    main: Path
    archive: Path

    @classmethod
    def below(cls, folder: Path, loaded: Loaded) -> Files:
        name = re.sub(r"[^A-Za-z0-9_-]", "_", loaded.settings.application_name)
        return cls(folder / f"{name}.py", folder / "kcl_spark.zip")

    def write(self, source: str, pipeline: str) -> None:
        """The pipeline's package goes whole. CannotSubmit if it is not there."""
        module = pipeline.partition(":")[0].partition(".")[0]
        content = [*_ours(), *_files_of(module)]
        self.main.parent.mkdir(parents=True, exist_ok=True)
        self.main.write_text(source, "utf-8")
        with ZipFile(self.archive, "w", ZIP_DEFLATED) as into:
            for path, name in content:
                into.write(path, name)


def _refuse(reason: str) -> NoReturn:
    click.echo(on_one_line(f"kcl-daemon spark-submit: {reason}"), err=True)
    sys.exit(EXIT_CONFIGURATION)


def find_program(environment: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    if home := environment.get("SPARK_HOME"):
        program = Path(home, "bin", PROGRAM)
        if not program.is_file():
            raise CannotSubmit(
                f"SPARK_HOME is {home}, but there is no bin/{PROGRAM} in it; correct it or remove it"
            )
        return str(program), dict(environment)
    if found := shutil.which(PROGRAM, path=environment.get("PATH", os.defpath)):
        return found, dict(environment)
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise CannotSubmit(
            f"there is no {PROGRAM}: set SPARK_HOME, add its folder to PATH, or pip install pyspark"
        )
    own = Path(spec.origin).parent
    # Another Python may lack pyarrow.
    python = dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), sys.executable)
    return str(own / "bin" / PROGRAM), {**python, **environment, "SPARK_HOME": str(own)}


def main_program(loaded: Loaded, *, is_cluster: bool) -> str:
    settings, spark = loaded.settings, loaded.settings.spark
    if spark.pipeline is None:
        raise CannotSubmit(f"{loaded.file} has no sparkPipeline; add sparkPipeline = module:function")
    if settings.landing.uri is None:
        raise CannotSubmit(
            f"{loaded.file} has no landing: Spark elsewhere reads what the daemons write there; add landing = s3://BUCKET/PREFIX"
        )
    checkpoint = spark.state_dir or f"{settings.application_name}-spark"
    places = {"landing": settings.landing.uri, "sparkStateDir": checkpoint}
    for name, place in places.items():
        if is_cluster and ":" not in place and not place.startswith("/"):
            raise CannotSubmit(
                f"{name} = {place}: a folder below the working directory, which other machines do not have; give a URI such as "
                f"s3a://BUCKET/PREFIX, or the absolute path of a folder that all machines mount"
            )
    options = _given(
        loaded, {"sparkMaxBytesPerTrigger": ("maxBytesPerTrigger", str(spark.max_bytes_per_trigger))}
    )
    if settings.landing.endpoint is not None:
        options["endpoint"] = settings.landing.endpoint
    arguments: dict[str, object] = {
        "pipeline": spark.pipeline,
        "landing": _absolute(settings.landing.uri),
        "checkpoint": _absolute(checkpoint),
        "stream": settings.stream_name,
        **_given(
            loaded, {"sparkTrigger": ("trigger", spark.trigger), "sparkColumns": ("columns", spark.columns)}
        ),
        **({"options": options} if options else {}),
    }
    return _MAIN.format(
        arguments="".join(f"        {name}={value!r},\n" for name, value in arguments.items())
    )


def _given(loaded: Loaded, wanted: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """The defaults of `run` fit a cluster better than the engine's."""
    return dict(pair for name, pair in wanted.items() if name in loaded.entries)


def _absolute(place: str) -> str:
    return place if ":" in place else str(Path(place).absolute())


def arguments_of(loaded: Loaded, archive: Path, more: Sequence[str]) -> list[str]:
    """The user's come last, where they win; their `--py-files` are added to ours."""
    spark = loaded.settings.spark
    memory = _given(loaded, {"sparkDriverMemory": ("--driver-memory", spark.driver_memory)})
    theirs, py_files = list(more), [str(archive)]
    while "--py-files" in theirs:
        at = theirs.index("--py-files")
        py_files += theirs[at + 1 : at + 2]
        del theirs[at : at + 2]
    conf = {"spark.sql.session.timeZone": "UTC", **dict(spark.conf)}
    return [
        *("--name", loaded.settings.application_name),
        *(word for pair in memory.items() for word in pair),
        *(("--packages", spark.packages) if spark.packages else ()),
        *(word for name, value in conf.items() for word in ("--conf", f"{name}={value}")),
        *("--py-files", ",".join(py_files)),
        *theirs,
    ]


def _ours() -> Iterator[tuple[Path, str]]:
    for name in SHIPPED:
        yield _origin("kcl_spark").with_name(f"{name}.py"), f"kcl_spark/{name}.py"
    yield _origin(_SOURCE), f"{_SOURCE}.py"


def _files_of(module: str) -> Iterator[tuple[Path, str]]:
    origin = _origin(module)
    if origin.name != "__init__.py":
        yield origin, origin.name
        return
    for path in sorted(origin.parent.rglob("*")):
        if path.is_file() and path.suffix not in _SUFFIXES_LEFT_OUT:
            yield path, path.relative_to(origin.parents[1]).as_posix()


def _origin(module: str) -> Path:
    spec = find_spec(module)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise CannotSubmit(
            f"there is no module {module!r} in the working directory or among the installed packages; start the command where it is"
        )
    return Path(spec.origin)


def _wait_for(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """SIGTERM is passed on; Ctrl-C reaches the program without us."""
    signal.signal(signal.SIGINT, lambda _number, _frame: None)  # a program would inherit that it is ignored
    with subprocess.Popen(command, env=dict(environment)) as running:  # noqa: S603 - the Spark that this user has chosen
        signal.signal(signal.SIGTERM, lambda _number, _frame: running.terminate())
        code = running.wait()
    return code if code >= 0 else 128 - code
