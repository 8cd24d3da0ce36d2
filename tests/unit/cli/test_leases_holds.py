"""`kcl-daemon pause`, `resume` and `limit`: what their words mean, and what they refuse. `tests/process` runs them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from click import BadParameter
from click.testing import CliRunner
from msgspec.structs import replace

from kcl_daemon.cli import main
from kcl_daemon.cli.common import NotChanged
from kcl_daemon.cli.leases.holds import ended, rate_of
from kcl_daemon.cli.leases.show import list_json, list_lines
from kcl_daemon.hold_words import hold_text, not_held
from kcl_daemon.leases.holds import Hold, LimitUnit
from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.leases.worker_row import Incarnation, WorkerRow, report, worker_from_row
from tests.unit.assignment.fleets import lease
from tests.unit.cli.leases_stage import ENDED, FLEET, FREE, HELD, MOVING, ONE, ORPHAN, ROWS, TWO, seen

ALL = Hold(by="ann@host", reason="the sink is down", since_ms=1_770_000_000_000)
STREAM = replace(ALL, stream="123456789012:orders:7")
SHARD = replace(STREAM, lease_key="123456789012:orders:7:shardId-0")
OTHER = replace(ALL, stream="123456789012:bills:7")
LIMIT = replace(ALL, unit=LimitUnit.RECORDS, amount=500.0, shards=8)


@pytest.mark.parametrize(
    ("text", "amount", "unit"),
    [
        ("500/s", 500, LimitUnit.RECORDS),
        ("0.5/s", 0.5, LimitUnit.RECORDS),
        ("2k/s", 2_000, LimitUnit.RECORDS),
        ("2MiB/s", 2 * 2**20, LimitUnit.BYTES),
        ("300 kB/s", 300_000, LimitUnit.BYTES),
        ("100B/s", 100, LimitUnit.BYTES),
    ],
)
def test_a_limit_is_of_records_or_of_bytes(text: str, amount: float, unit: LimitUnit) -> None:
    assert rate_of(text) == (amount, unit)


def test_off_is_no_limit() -> None:
    assert rate_of("off") is None


@pytest.mark.parametrize("text", ["500", "0/s", "-1/s", "5/m", "5 stones/s", "fast", ""])
def test_a_text_that_is_no_rate_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadParameter, match="500/s"):
        rate_of(text)


def test_a_resume_ends_what_is_inside_its_scope_and_nothing_else() -> None:
    assert ended((ALL, STREAM, SHARD, OTHER, LIMIT), ALL) == [LIMIT]
    assert ended((STREAM, SHARD, OTHER, LIMIT), STREAM) == [OTHER, LIMIT]
    assert ended((SHARD, OTHER), SHARD) == [OTHER]
    assert ended((ALL, LIMIT), replace(ALL, unit=LimitUnit.RECORDS)) == [ALL]


@pytest.mark.parametrize(("wider", "target"), [(ALL, STREAM), (ALL, SHARD), (STREAM, SHARD)])
def test_a_resume_of_a_part_is_refused_and_names_the_wider_pause(wider: Hold, target: Hold) -> None:
    with pytest.raises(NotChanged) as refused:
        ended((target, wider), target)
    for words in (
        "shardId-0" if target is SHARD else "stream",
        "all shards" if wider is ALL else "stream",
        "ann@host",
    ):
        assert words in str(refused.value)


def test_a_hold_in_words_says_who_why_since_when_and_until_when() -> None:
    assert hold_text(ALL) == (
        "all shards: paused until it is ended, by ann@host: the sink is down, since 2026-02-02T02:40:00Z"
    )
    assert hold_text(replace(LIMIT, until_ms=1_770_000_060_000)) == (
        "all shards: 500 records/s over 8 shards: 62.5 records/s each, until 2026-02-02T02:41:00Z, by ann@host: "
        "the sink is down, since 2026-02-02T02:40:00Z"
    )
    assert hold_text(replace(SHARD, reason="")).startswith("123456789012:orders:7:shardId-0: paused until")


def test_control_characters_of_a_reason_do_not_reach_a_terminal() -> None:
    assert "\x1b" not in hold_text(replace(ALL, reason="\x1b[2Jgone"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pause", "app.properties"], "a pause needs a reason"),
        (["pause", "app.properties", "--reason", "x", "--for", "1h", "--until", "1770000000"], "not both"),
        (["pause", "app.properties", "--reason", "x", "--for", "soon"], "no time in the future"),
        (
            ["pause", "app.properties", "--reason", "x", "--until", "2001-01-01T00:00:00Z"],
            "no time in the future",
        ),
        (["limit", "--properties", "app.properties"], "give a limit"),
        (["limit", "--properties", "app.properties", "fast"], "is not a limit"),
        (["limit", "app.properties", "fast"], "is not a limit"),
    ],
)
def test_wrong_words_are_refused_before_anything_is_read(words: list[str], said: str, tmp_path: Path) -> None:
    file = tmp_path / "app.properties"
    file.write_text("executableName = child\nstreamName = orders\napplicationName = app\n", "ascii")
    given = [str(file) if word == "app.properties" else word for word in words]
    result = CliRunner().invoke(main, given, prog_name="kcl-daemon")
    assert result.exit_code == 2
    assert said in result.output


def test_the_list_of_leases_shows_what_is_held() -> None:
    shown = dataclasses.replace(seen(), holds=(replace(ALL, lease_key=HELD), LIMIT))
    lines = list_lines(shown, with_finished=False)
    (paused,) = (line for line in lines if line.startswith(f"{HELD}  "))
    assert "w-1 (paused)" in paused
    unknown = "in force for 3 of 4 leases: w-old has no row, so it is not known for them"
    assert [line for line in lines if "until it is ended" in line] == [
        hold_text(shown.holds[0]),
        hold_text(LIMIT, unknown),
    ]
    document = json.loads(list_json(shown, with_finished=False))
    assert [(each["kind"], each["leaseKey"]) for each in document["holds"]] == [
        ("pause", HELD),
        ("limit", None),
    ]
    assert [each["lease"] for each in document["leases"] if each["paused"]] == [HELD]
    assert [each["notHeld"] for each in document["holds"]] == [None, unknown]


def test_a_lease_of_a_java_worker_is_not_shown_as_paused() -> None:
    rows = {**ROWS, ONE: dataclasses.replace(ROWS[ONE], is_java=True)}
    shown = dataclasses.replace(seen(fleet=dataclasses.replace(FLEET, stats=rows)), holds=(ALL,))
    listed = "\n".join(list_lines(shown, with_finished=False))
    assert (
        "in force for 1 of 4 leases: w-1 is a Java worker and goes on, w-old has no row, so it is not known"
        in listed
    )
    assert "w-1 (paused)" not in listed
    document = json.loads(list_json(shown, with_finished=True))
    assert {each["lease"]: each["paused"] for each in document["leases"]} == {
        HELD: False,
        MOVING: False,
        ORPHAN: None,
        FREE: True,
        ENDED: True,
    }


@pytest.mark.parametrize(
    ("owners", "said"),
    [
        ("ours ours", ""),
        ("ours -", ""),
        ("", ""),
        (
            "java-1 ours java-1 java-2",
            "in force for 1 of 4 leases: java-1 and java-2 are Java workers and go on",
        ),
        ("java-1", "in force for 0 of 1 lease: java-1 is a Java worker and goes on"),
        (
            " ".join(f"java-{n}" for n in range(1, 8)),
            "in force for 0 of 7 leases: java-1, java-2, java-3, java-4, java-5 and 2 more are Java workers and go on",
        ),
    ],
)
def test_a_hold_says_for_how_many_leases_it_is_in_force_beside_java_workers(owners: str, said: str) -> None:
    names = [None if each == "-" else WorkerId(each) for each in owners.split()]
    leases = [lease(number, owner) for number, owner in enumerate(names)]
    rows = {name: WorkerRow(name, 1, is_java=name.startswith("java")) for name in names if name}
    assert not_held(ALL, leases, rows) == said


def test_a_row_without_an_incarnation_is_that_of_a_java_worker() -> None:
    mine = {**report(ONE, now_s=7, incarnation=Incarnation(5, "nonce")).put, "wid": ONE}
    java = {**report(TWO, now_s=7).put, "wid": TWO}
    read = [worker_from_row(row, key_attribute="wid") for row in (mine, java)]
    assert [each is not None and each.is_java for each in read] == [False, True]
