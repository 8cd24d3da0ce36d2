"""The documents say what the code says: links, commands, names, figures, and the examples run."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from kcl_client import RecordProcessor
from kcl_client.testing import drive
from kcl_daemon.config.balance import LeaseSettings
from kcl_daemon.config.load import interpret
from kcl_daemon.context import Timings, timings
from kcl_protocol.codec import (
    Echo,
    Stray,
    decode_child_line,
    decode_daemon_line,
    decode_log_line,
    encode,
    encode_log_line,
)
from kcl_protocol.conversation import TRANSITIONS, State
from kcl_protocol.errors import (
    CheckpointDependencyFailed,
    CheckpointIllegalArgument,
    CheckpointInvalidState,
    CheckpointShutdown,
    CheckpointThrottled,
    DeadLetterTooLarge,
    NoDeadLetterDestination,
    RecordNotInBatch,
    RejectError,
)

ROOT = Path(__file__).parents[2]
START = ROOT / "docs" / "start.md"
PROTOCOL = ROOT / "docs" / "protocol.md"
DOCUMENTS = sorted(
    path
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("tests/**/*.md"))
    if path.is_file()
)

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def blocks(path: Path, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return [body for found, body in _FENCE.findall(path.read_text("utf-8")) if found == language]


def anchors(path: Path) -> set[str]:
    """The headings as GitHub links to them, and anchors of our own."""
    text = _FENCE.sub("", path.read_text("utf-8"))
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    own = set(re.findall(r'<a id="([^"]+)"></a>', text))
    return own | {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def rows(path: Path, first_cell: str) -> list[list[str]]:
    """The body of the table whose first heading this is."""
    _, _, rest = path.read_text("utf-8").partition(f"\n| {first_cell} |")
    table = rest.partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(path: Path) -> None:
    broken: list[str] = []
    for link in _LINK.findall(_FENCE.sub("", path.read_text("utf-8"))):
        if re.match(r"\w+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_every_make_command_in_the_documents_exists() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = {
        name for line in re.findall(r"^([a-z][a-z ]*):", makefile, re.MULTILINE) for name in line.split()
    }
    code = re.compile(r"`make (\w+)|^make (\w+)", re.MULTILINE)
    named = {
        name for path in DOCUMENTS for pair in code.findall(path.read_text("utf-8")) for name in pair if name
    }
    assert {"demo", "test"} <= named
    assert named <= targets


def test_the_changelog_has_a_place_for_what_comes_next() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert re.search(r"^## \[Unreleased\]$", changelog, re.MULTILINE)
    order = ["Breaking", "Added", "Changed", "Fixed"]
    for release in changelog.split("\n## ")[1:]:
        found = re.findall(r"^### (\w+)$", release, re.MULTILINE)
        assert found == [name for name in order if name in found]


def test_the_starts_properties_file_is_complete_and_without_a_remark() -> None:
    (text,) = blocks(START, "properties")
    loaded = interpret(text.encode("latin-1"), file="app.properties", default_worker_id="worker-1")
    assert loaded.warnings == ()
    assert loaded.settings.child.command == ("python3", "consumer.py")


def test_the_starts_processor_runs() -> None:
    (text,) = blocks(START, "python")
    namespace: dict[str, object] = {"__name__": "consumer"}
    exec(compile(text, "consumer.py", "exec"), namespace)
    (kind,) = [
        each
        for each in namespace.values()
        if isinstance(each, type) and issubclass(each, RecordProcessor) and each is not RecordProcessor
    ]
    report = drive(kind(), ["one", "two", "three"], batch_size=2)
    assert report.exception is None
    assert report.last_checkpoint is not None
    assert report.last_checkpoint.is_shard_end


def state_diagram() -> str:
    """All transitions as a mermaid `stateDiagram-v2`."""
    lines = ["stateDiagram-v2", f"    [*] --> {State.START.value}"]
    for role, table in TRANSITIONS.items():
        lines.extend(
            f"    {state.value} --> {following.value} : {role.value} says {kind.value}"
            for state, row in table.items()
            for kind, following in row.items()
        )
    lines.append(f"    {State.OVER.value} --> [*]")
    return "\n".join(lines) + "\n"


def test_the_protocols_page_shows_the_conversation_as_it_is() -> None:
    assert blocks(PROTOCOL, "mermaid") == [state_diagram()]


def section(path: Path, heading: str) -> str:
    """What stands under a heading of the second level."""
    return path.read_text("utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def examples(text: str) -> list[bytes]:
    return [body.encode() for language, body in _FENCE.findall(text) if language == "json"]


@pytest.mark.parametrize("line", examples(section(PROTOCOL, "What the daemon says")))
def test_the_daemons_examples_are_written_as_the_daemon_writes_them(line: bytes) -> None:
    assert encode(decode_daemon_line(line)) == line


@pytest.mark.parametrize("line", examples(section(PROTOCOL, "What the child says")))
def test_the_childs_examples_are_messages(line: bytes) -> None:
    message = decode_child_line(line)
    assert not isinstance(message, Stray | Echo)
    assert encode(message) == line


@pytest.mark.parametrize("line", examples(section(PROTOCOL, "Log messages")))
def test_the_example_of_a_log_message_is_one(line: bytes) -> None:
    message = decode_log_line(line)
    assert message is not None
    assert encode_log_line(message) == line


def test_the_protocols_page_knows_every_action_and_every_error() -> None:
    headings = anchors(PROTOCOL)
    assert {"initialize", "processrecords", "shutdownrequested", "leaselost", "shardended"} <= headings
    assert {"status", "checkpoint", "reject"} <= headings
    reported = {cells[0].strip("`") for cells in rows(PROTOCOL, "`error`")}
    kinds = (
        CheckpointThrottled,
        CheckpointDependencyFailed,
        CheckpointShutdown,
        CheckpointInvalidState,
        CheckpointIllegalArgument,
    )
    assert reported == {kind.wire_name for kind in kinds}
    reported = {cells[0].strip("`") for cells in rows(PROTOCOL, "`error` of a reject")}
    refusals = (
        NoDeadLetterDestination,
        DeadLetterTooLarge,
        RecordNotInBatch,
        RejectError,
        CheckpointShutdown,
    )
    assert reported == {kind.wire_name for kind in refusals}


def test_the_designs_times_are_those_of_the_defaults() -> None:
    reported = {
        cells[0].strip("`"): float(cells[1]) for cells in rows(ROOT / "docs" / "design-leases.md", "Timing")
    }
    actual = timings(LeaseSettings())
    assert reported == {
        field.name: pytest.approx(getattr(actual, field.name), abs=5e-4) for field in fields(Timings)
    }


@pytest.mark.parametrize("path", sorted(ROOT.glob("docs/design*.md")), ids=lambda path: path.name)
def test_the_files_that_the_design_names_exist(path: Path) -> None:
    folders = [
        ROOT,
        ROOT / "daemon" / "kcl_daemon",
        ROOT / "clients" / "pyspark" / "kcl_spark",
        ROOT / "clients" / "landing" / "kcl_landing",
    ]
    named = re.findall(r"`([a-z0-9_/]+\.(?:py|toml|md))`", path.read_text("utf-8"))
    assert named
    assert [name for name in named if not any((folder / name).is_file() for folder in folders)] == []


def test_the_names_in_code_that_the_glossary_gives_exist() -> None:
    sources = "\n".join(
        path.read_text("utf-8")
        for top in ("daemon", "protocol", "clients")
        for path in ROOT.glob(f"{top}/**/*.py")
    )
    names = {
        name
        for line in (ROOT / "docs" / "glossary.md").read_text("utf-8").splitlines()
        if line.startswith("| ")
        for name in re.findall(r"`(\w+)`", line.split("|")[3])
    }
    assert {"Lease", "lease_counter"} <= names
    assert {name for name in names if not re.search(rf"\b{name}\b", sources)} == set()
