"""A destination of dead letters that another package brings: found by its metadata, used as ours are, refused in clear words."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.packaging.dockerfile import ROOT

PACKAGE = ROOT / "tests" / "packaging" / "folder_letters"
STORE = """
import sys
from pathlib import Path
import anyio
from kcl_daemon.cli.common import load_file
from kcl_daemon.production import letters_of
from tests.unit.consumer.letters import letter

async def store(path):
    async with letters_of(load_file(path).settings) as letters:
        for number in (2, 1, 2):
            await letters.store(letter(number))

anyio.run(store, Path(sys.argv[1]))
"""
LOADED = """
import sys
from pathlib import Path
from kcl_daemon.config.load import interpret
interpret(Path(sys.argv[1]).read_bytes(), file="app", default_worker_id="w")
print(*sorted(name for name in sys.modules if "destinations." in name or name.split(".")[0] in
              {"folder_letters", "botocore"} or name == "importlib.metadata"), sep="\\n")
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the package is installed in."""
    target, source = tmp_path_factory.mktemp("target"), tmp_path_factory.mktemp("source")
    for each in PACKAGE.iterdir():
        if each.is_file():
            (source / each.name).write_bytes(each.read_bytes())
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(target))
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(source)], check=True, timeout=300)
    return target


@pytest.fixture
def properties(tmp_path: Path) -> Path:
    return write(tmp_path / "app.properties", f"folder:{tmp_path / 'dead'}")


def write(path: Path, destination: str | None) -> Path:
    to = "" if destination is None else f"deadLetterDestination = {destination}\n"
    path.write_text(
        f"executableName = cat\nstreamName = orders\napplicationName = billing\nregionName = us-east-1\n{to}"
    )
    return path


def python(words: Sequence[str], *found: Path) -> subprocess.CompletedProcess[str]:
    """With `found` before what else is installed."""
    environment = {"PYTHONPATH": ":".join(map(str, (*found, ROOT))), "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        [sys.executable, *words], env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def letters(*words: str, found: Path) -> subprocess.CompletedProcess[str]:
    return python(("-m", "kcl_daemon", "letters", *words), found)


def keys(source: Sequence[str], found: Path) -> Iterator[str]:
    listed = letters("list", *source, "--json", found=found)
    assert listed.returncode == 0, listed.stderr
    return (each["sequenceNumber"] for each in json.loads(listed.stdout)["letters"])


def test_the_document_shows_this_package() -> None:
    text = (ROOT / "docs" / "extending.md").read_text("utf-8")
    for name, language in (("pyproject.toml", "toml"), ("folder_letters.py", "python")):
        assert f"```{language}\n{(PACKAGE / name).read_text('utf-8')}```\n" in text


def test_letters_of_a_daemon_go_to_it_and_come_back(
    installed: Path, properties: Path, tmp_path: Path
) -> None:
    stored = python(("-c", STORE, str(properties)), installed)
    assert stored.returncode == 0, stored.stderr
    source = ("-p", str(properties))
    assert list(keys(source, installed)) == ["1", "2"]
    assert list(keys((f"folder:{tmp_path / 'dead'}",), installed)) == ["1", "2"]
    assert letters("show", *source, "1-7", "--raw", found=installed).stdout == "poison"
    assert letters("delete", *source, "--key", "1-7", "--yes", found=installed).returncode == 0
    program = (sys.executable, str(ROOT / "tests" / "packaging" / "answers.py"))
    replayed = letters("replay", *source, "--delete-done", "--", *program, found=installed)
    assert replayed.returncode == 0, replayed.stderr
    assert list((tmp_path / "dead").iterdir()) == []
    assert (tmp_path / "dead.receipts").exists()


def test_check_and_the_policy_take_it_as_one_of_ours(installed: Path, properties: Path) -> None:
    checked = python(("-m", "kcl_daemon", "check", str(properties)), installed)
    assert checked.returncode == 0, checked.stdout
    policy = python(("-m", "kcl_daemon", "iam-policy", "--letters", str(properties)), installed)
    assert json.loads(policy.stdout)["Statement"] == []


@pytest.mark.parametrize(
    ("destination", "loaded"),
    [
        (None, set[str]()),
        ("file:x", {"kcl_daemon.destinations.file"}),
        ("folder:/x", {"folder_letters", "importlib.metadata"}),
    ],
)
def test_only_what_a_property_names_is_loaded(
    installed: Path, tmp_path: Path, destination: str | None, loaded: set[str]
) -> None:
    path = write(tmp_path / "app.properties", destination)
    done = python(("-c", LOADED, str(path)), installed)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == loaded


def refusal(path: Path, *found: Path) -> str:
    done = python(("-m", "kcl_daemon", "check", str(path)), *found)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    return done.stdout + done.stderr


def test_one_that_no_package_has_is_named(tmp_path: Path) -> None:
    said = refusal(write(tmp_path / "app.properties", "folder:/x"))
    assert "not a valid destination, and no installed package has 'folder'; allowed: file:PATH" in said


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("class Another: ...", "AttributeError"),
        ("FolderLetters = 5", "it is no Destination with the scheme folder"),
    ],
)
def test_one_that_is_broken_is_an_error_that_names_its_package(
    tmp_path: Path, properties: Path, text: str, why: str
) -> None:
    (tmp_path / "folder_letters.py").write_text(text)
    entry_point(tmp_path, "broken-letters")
    said = refusal(properties, tmp_path)
    assert "the destination folder of the package broken-letters, folder_letters:FolderLetters, " in said
    assert why in said


def test_letters_that_a_package_only_writes_are_said_to_be_unreadable(
    tmp_path: Path, properties: Path
) -> None:
    (tmp_path / "folder_letters.py").write_text(
        "from kcl_daemon.config.dead_letters import Destination\n"
        "class FolderLetters(Destination):\n"
        "    scheme = 'folder'\n"
        "    def writer(self, endpoints, overflow): ...\n"
    )
    entry_point(tmp_path, "writing-letters")
    done = letters("list", "-p", str(properties), found=tmp_path)
    assert (done.returncode != 0, "Traceback" in done.stderr) == (True, False)
    assert "its package cannot read letters back" in done.stderr


def test_two_packages_with_the_same_one_are_an_error(
    installed: Path, properties: Path, tmp_path: Path
) -> None:
    entry_point(tmp_path, "other-letters")
    said = refusal(properties, installed, tmp_path)
    assert "folder-letters and other-letters both have a destination folder; uninstall one" in said


def entry_point(folder: Path, package: str) -> None:
    """As pip writes it."""
    metadata = folder / f"{package.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[kcl_daemon.dead_letters]\nfolder = folder_letters:FolderLetters\n"
    )
