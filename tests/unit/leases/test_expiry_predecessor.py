"""Whether a predecessor is proven dead: what counts as a proof, and what looks like one and is none."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_daemon.leases.expiry import (
    FileLockState,
    ProcessObservation,
    ProcessRecord,
    ProvenDead,
    Unproven,
    judge_process,
)
from kcl_daemon.leases.lease import WorkerId

RECORD = ProcessRecord(WorkerId("worker-1"), "nonce", "boot-1", 7, 4711, 4026531836, 64769, 1234)
GONE = ProcessObservation("boot-1", 64769, 1234, FileLockState.FREE, is_local=True, running=False)


@pytest.mark.parametrize(
    ("seen", "is_dead"),
    [
        (GONE, True),
        (replace(GONE, running=None), True),  # another container on the same volume
        (replace(GONE, lock=FileLockState.UNKNOWN), True),  # by the process table alone
        (replace(GONE, is_local=False), True),  # likewise: the lock of a network file system says nothing
        (replace(GONE, is_local=False, running=None), False),
        (replace(GONE, lock=FileLockState.UNKNOWN, running=None), False),
        (replace(GONE, boot_id="boot-2"), False),  # another host with a cloned volume, or a reboot
        (replace(GONE, boot_id="boot-0"), False),
        (replace(GONE, boot_id=None), False),
        (replace(GONE, boot_id=""), False),
        (replace(GONE, inode=99), False),  # `cp -a` of the folder, for a second daemon
        (replace(GONE, inode=5678), False),
        (replace(GONE, device=99), False),
        (replace(GONE, device=70000), False),
        (replace(GONE, running=True), False),  # somebody has put the lock file away
        (replace(GONE, lock=FileLockState.HELD), False),  # its guard still ends its children
        (replace(GONE, lock=FileLockState.HELD, running=None), False),
    ],
)
def test_only_this_boot_of_this_kernel_and_the_end_of_the_process_prove_it(
    seen: ProcessObservation, is_dead: bool
) -> None:
    assert isinstance(judge_process(RECORD, seen), ProvenDead) is is_dead


def test_a_held_lock_of_one_that_is_gone_is_worth_another_look() -> None:
    assert judge_process(RECORD, replace(GONE, lock=FileLockState.HELD)) == Unproven(
        "its lock is held, by itself or by the guard of its children", may_change=True
    )


def test_a_verdict_that_cannot_change_is_final() -> None:
    for seen in (replace(GONE, boot_id="boot-2"), replace(GONE, inode=99), replace(GONE, running=True)):
        judged = judge_process(RECORD, seen)
        assert isinstance(judged, Unproven)
        assert not judged.may_change


def test_nothing_proves_the_death_of_one_that_may_live() -> None:
    """Whatever else is seen: another boot, a copy, a running process, a held lock are never a death."""
    for boot, inode, lock, is_local, running in product(
        ("boot-1", "boot-2", None), (1234, 99), FileLockState, (True, False), (True, False, None)
    ):
        seen = ProcessObservation(boot, 64769, inode, lock, is_local=is_local, running=running)
        if boot != "boot-1" or inode != 1234 or running or lock is FileLockState.HELD:
            assert isinstance(judge_process(RECORD, seen), Unproven)


def test_a_record_survives_being_stored() -> None:
    assert ProcessRecord.from_text(RECORD.to_text()) == RECORD


@pytest.mark.parametrize("name", [each.name for each in fields(RECORD)])
def test_a_record_with_a_field_that_is_missing_or_of_another_type_is_none(name: str) -> None:
    whole: dict[str, object] = asdict(RECORD)
    without = {key: value for key, value in whole.items() if key != name}
    other = {**whole, name: "7" if isinstance(whole[name], int) else 7}
    assert [ProcessRecord.from_text(json.dumps(each)) for each in (whole, without, other)] == [
        RECORD,
        None,
        None,
    ]


@given(st.text() | st.sampled_from(["{}", "[]", "null", "1e999", '{"pid": true}', "[" * 100_000]))
def test_a_file_that_is_no_record_is_none(text: str) -> None:
    assert ProcessRecord.from_text(text) is None
