from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Final, NoReturn

import click

from kcl_daemon import __version__
from kcl_daemon.cli.common import EXIT_CONFIGURATION, EXIT_FAILURE
from kcl_daemon.cli.packaging import shipped_folder
from kcl_daemon.config.kinds import InvalidValue, ValueKind, name
from kcl_daemon.config.services import REGION
from kcl_daemon.config.streams import NAME_OF_STREAM
from kcl_daemon.text import on_one_line, shown

_APPLICATION: Final = name(
    r"[A-Za-z0-9][A-Za-z0-9_.-]{2,236}", "3 to 237 letters, digits, dots, dashes and underscores"
)
_UNIT: Final = "packaging/systemd/kcl-daemon.service"
_IGNORED: Final = "# What the processor writes.\n*\n!.gitignore\n"
_BUILD_OF_GO: Final = "go build -o consumer ."
_ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_FOLDER_OF_THE_UNIT: Final = (
    "# Where a relative executableName or sparkStateDir is looked for; the only folder that can be written."
)
_PATH: Final = "Environment=PATH=/opt/kcl-daemon/bin:/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True, slots=True)
class Language:
    processor: str
    program: str
    others: tuple[str, ...] = ()
    test: str = "sh test.sh"
    command: str = ""
    build: str = ""
    copied: str = ""
    stages: str = ""
    tools: str = ""
    extra: str = ""
    needs: str = ""
    stop_s: int = 45

    @property
    def local_extras(self) -> str:
        return f"[local,{self.extra}]" if self.extra else "[local]"


def _by_command(command: str) -> str:
    return f"# The program that is started for each shard.\nexecutableName: {command} out"


LANGUAGES: Final[Mapping[str, Language]] = {
    "python": Language(
        "python/consumer.py",
        "# The program that is started for each shard: it calls `handle` with each record.\n"
        "executableName: python3 -m kcl_client.run consumer:handle\n\n"
        "# Where records go that are no order. A file is for development; s3://BUCKET/PREFIX, sqs:URL, sns:ARN ...\n"
        "deadLetterDestination: file:out/dead.jsonl",
        others=("python/test_consumer.py",),
        test="python3 -m unittest",
        copied="consumer.py",
    ),
    "node": Language(
        "node/consumer.js",
        _by_command("node consumer.js"),
        command="node consumer.js",
        copied="consumer.js",
        stages="FROM node:22-slim AS node\n",
        tools="COPY --from=node /usr/local/bin/node /usr/local/bin/node\n",
        needs=" and Node 18 or newer",
    ),
    "go": Language(
        "go/main.go",
        _by_command("./consumer"),
        others=("go/go.mod",),
        command="./consumer",
        build=_BUILD_OF_GO,
        stages=f"FROM golang:1.24 AS build\nWORKDIR /src\nCOPY go.mod main.go ./\nRUN CGO_ENABLED=0 {_BUILD_OF_GO}\n",
        tools="COPY --from=build /src/consumer /app/consumer\n",
        needs=" and Go 1.21 or newer",
    ),
    "shell": Language(
        "shell/consumer.sh",
        _by_command("sh consumer.sh"),
        command="sh consumer.sh",
        copied="consumer.sh",
        tools="# hadolint ignore=DL3008\nRUN apt-get update && apt-get install --no-install-recommends -y jq "
        "&& rm -rf /var/lib/apt/lists/*\n",
        needs=" and jq 1.6 or newer",
    ),
    "spark": Language(
        "spark/sizes.py",
        "# The pipeline, and where Spark keeps its state: on AWS a folder that survives the host, or the landing log.\n"
        f"sparkPipeline: sizes:sizes\nsparkStateDir: out/state\nsparkConf.spark.sql.streaming.stateStore.providerClass: {_ROCKSDB}",
        others=("spark/test_sizes.py",),
        test="python3 -m unittest",
        copied="sizes.py",
        extra="spark",
        stop_s=130,
    ),
}


class _Template(Template):
    delimiter = "@"


@dataclass(frozen=True, slots=True)
class Project:
    language: str
    stream: str
    application: str
    region: str | None

    def files(self) -> dict[str, str]:
        language = LANGUAGES[self.language]
        samples = shipped_folder("samples", "clients/samples")
        copied = {Path(each).name: samples / each for each in (language.processor, *language.others)}
        texts = {target: path.read_text("utf-8") for target, path in copied.items()}
        words = self._words(language)
        for path in sorted((samples / "project").iterdir()):
            if path.name != "test.sh" or language.command:
                texts[path.name] = _Template(path.read_text("utf-8")).substitute(words)
        texts[f"{self.application}.service"] = self._unit()
        texts["out/.gitignore"] = _IGNORED
        return texts

    def _words(self, language: Language) -> dict[str, object]:
        region = self.region or "eu-west-1"
        why = "" if self.region else "# Without this line: AWS_REGION.\n# "
        return {
            "stream": self.stream,
            "application": self.application,
            "region_line": f"{why}regionName: {region}",
            "program": language.program,
            "processor": f"`{Path(language.processor).name}`",
            "command": language.command,
            "test": language.test,
            "build": f"{language.build} && " if language.build else "",
            "build_lines": f"{language.build}\n" if language.build else "",
            "needs": language.needs,
            "stages": language.stages,
            "tools": language.tools,
            "copied": f"app.properties {language.copied}".rstrip(),
            "extras": f"[{language.extra}]" if language.extra else '""',
            "local_extras": language.local_extras,
            "version": __version__,
            "stop_s": language.stop_s,
        }

    def _unit(self) -> str:
        text = (shipped_folder("packaging") / "systemd/kcl-daemon.service").read_text("utf-8")
        folder = f"/srv/{self.application}"
        for old, new in (
            ("Amazon Kinesis consumer (kcl-daemon)", f"{self.application} (kcl-daemon)"),
            ("systemctl edit kcl-daemon`", f"systemctl edit {self.application}`"),
            (_FOLDER_OF_THE_UNIT, "# What the daemon itself keeps."),
            (
                "WorkingDirectory=/var/lib/kcl-daemon",
                f"WorkingDirectory={folder}\n# What the processor may write.\nReadWritePaths=-{folder}/out",
            ),
            ("--properties /etc/kcl-daemon/app.properties", f"--properties {folder}/app.properties"),
            ("EnvironmentFile=", f"{_PATH}\nEnvironmentFile="),
        ):
            assert text.count(old) == 1, f"{old} is in {_UNIT}"
            text = text.replace(old, new)
        return text


Callback = Callable[[click.Context, click.Parameter, str | None], str | None]


def _of_kind(kind: ValueKind[str]) -> Callback:
    def read(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
        try:
            return None if value is None else kind.read(value)
        except InvalidValue as refusal:
            raise click.BadParameter(f"{shown(value or '')}: {refusal}; allowed: {kind.allowed}") from None

    return read


@click.command("init", short_help="Write a new project.")
@click.argument("folder", default=".", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--language",
    type=click.Choice(list(LANGUAGES)),
    default="python",
    show_default=True,
    help="Of the processor.",
)
@click.option(
    "--stream",
    metavar="NAME",
    default="orders",
    show_default=True,
    callback=_of_kind(NAME_OF_STREAM),
    help="The stream to read.",
)
@click.option(
    "--application",
    metavar="NAME",
    callback=_of_kind(_APPLICATION),
    help="Name of the application and of its tables. Default: STREAM-consumer.",
)
@click.option("--region", metavar="NAME", callback=_of_kind(REGION), help="Default: that of the environment.")
@click.option("--force", is_flag=True, help="Replace files that are there.")
def init(
    *, folder: Path, language: str, stream: str, application: str | None, region: str | None, force: bool
) -> None:
    """Write a project into FOLDER: a processor with its test, the properties, an image, a compose file, a unit.

    It runs at once with `kcl-daemon local`. Files that are there stay: then nothing is written.
    """
    project = Project(language, stream, application or _named_after(stream), region)
    try:
        for path in write(project.files(), folder, force=force):
            click.echo(path)
    except FileExistsError as error:
        _fail(f"{error}; nothing was written. --force replaces files", EXIT_CONFIGURATION)
    except OSError as error:
        _fail(f"{error}; nothing was written", EXIT_FAILURE)
    chosen = LANGUAGES[language]
    click.echo(f"\nNext{'' if folder == Path() else f', in {folder}'}:\n  {chosen.test}")
    click.echo(f"  kcl-daemon local --stream {stream}:2 --write local.env    # then as README.md says")


def _named_after(stream: str) -> str:
    try:
        return _APPLICATION.read(f"{stream}-consumer")
    except InvalidValue:
        raise click.UsageError(f"no application can be named after {stream}; give --application") from None


def _fail(reason: str, code: int) -> NoReturn:
    click.echo(on_one_line(f"kcl-daemon init: {reason}"), err=True)
    sys.exit(code)


def write(texts: Mapping[str, str], folder: Path, *, force: bool) -> list[Path]:
    """All or none. FileExistsError names those that are there."""
    targets = {folder / each: text for each, text in texts.items()}
    there = [each for each in targets if os.path.lexists(each) and not (force and not each.is_dir())]
    if there:
        raise FileExistsError(", ".join(map(str, there)) + (" exists" if len(there) == 1 else " exist"))
    made: list[Path] = []
    fresh: dict[Path, Path] = {}
    try:
        for target, text in targets.items():
            _make_folders(target.parent, made)
            new = target.with_name(f".{target.name}.{os.getpid()}.new")
            fresh[target] = new
            new.write_text(text, "utf-8")
            new.chmod(0o755 if target.suffix == ".sh" else 0o644)
        for target, new in fresh.items():
            new.replace(target)
    except OSError:
        _remove(fresh.values(), made)
        raise
    return list(targets)


def _make_folders(folder: Path, made: list[Path]) -> None:
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir()
        made.append(each)


def _remove(files: Iterable[Path], folders: list[Path]) -> None:
    for each in files:
        with suppress(OSError):
            each.unlink()
    for each in reversed(folders):
        with suppress(OSError):
            each.rmdir()
