"""Which checkpoints are allowed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_daemon.leases.lease import CheckpointWindow, Lease, LeaseKey
from kcl_protocol.errors import CheckpointIllegalArgument
from kcl_protocol.sequence import AT_TIMESTAMP, LATEST, SHARD_END, TRIM_HORIZON, ExtendedSequenceNumber


def at(number: int, sub: int = 0) -> ExtendedSequenceNumber:
    return ExtendedSequenceNumber(str(number), sub)


def test_a_checkpoint_without_a_number_is_at_the_last_record_handed_over() -> None:
    assert CheckpointWindow(at(5), at(9, 2)).position(None, 7) == at(9, 2)


def test_no_number_at_the_end_of_the_shard_means_shard_end() -> None:
    assert CheckpointWindow(at(5), at(9), shard_ended=True).position(None, None) == SHARD_END


def test_a_number_alone_means_sub_sequence_zero() -> None:
    assert CheckpointWindow(at(5), at(9, 2)).position("9", None) == at(9, 0)


@pytest.mark.parametrize("stored", [at(5), at(9), TRIM_HORIZON])
def test_the_last_number_at_the_end_means_shard_end_even_if_it_is_stored_already(
    stored: ExtendedSequenceNumber,
) -> None:
    # kcl#211: the Java guard drops this request and the shard never completes.
    assert CheckpointWindow(stored, at(9), shard_ended=True).position("9", 0) == SHARD_END


def test_an_earlier_number_at_the_end_is_stored_as_it_is() -> None:
    assert CheckpointWindow(at(5), at(9), shard_ended=True).position("7", 0) == at(7)


def test_a_number_that_was_never_handed_over_is_refused_at_the_end_too() -> None:
    # Nothing could be read from there by the next child, were this one to die before SHARD_END is stored.
    with pytest.raises(CheckpointIllegalArgument, match="beyond 9"):
        CheckpointWindow(at(5), at(9), shard_ended=True).position("10", 0)


def test_shard_end_by_name_only_at_the_end() -> None:
    assert CheckpointWindow(at(5), at(9), shard_ended=True).position("SHARD_END", None) == SHARD_END
    with pytest.raises(CheckpointIllegalArgument, match="beyond"):
        CheckpointWindow(at(5), at(9)).position("SHARD_END", None)


@pytest.mark.parametrize(("number", "sub"), [("", 0), ("12a", 0), ("-3", 0), ("9", -1), ("latest", 0)])
def test_malformed_positions_are_refused(number: str, sub: int) -> None:
    with pytest.raises(CheckpointIllegalArgument):
        CheckpointWindow(at(5), at(9)).position(number, sub)


@given(last=st.integers(0, 50), ahead=st.integers(0, 50), asked=st.integers(0, 120), sub=st.integers(0, 3))
def test_a_number_is_accepted_exactly_between_the_stored_one_and_the_last_handed_over(
    last: int, ahead: int, asked: int, sub: int
) -> None:
    window = CheckpointWindow(at(last), at(last + ahead))
    if at(last) <= at(asked, sub) <= at(last + ahead):
        assert window.position(str(asked), sub) == at(asked, sub)
    else:
        with pytest.raises(CheckpointIllegalArgument):
            window.position(str(asked), sub)


def test_the_first_record_read_is_known_of_a_lease_at_latest_with_one_position() -> None:
    lease = Lease(LeaseKey("s"), 1, LATEST, lanes=(at(7),))
    assert lease.first_read == "7"
    assert replace(lease, lanes=()).first_read is None
    assert replace(lease, lanes=(at(7), at(9))).first_read is None


@pytest.mark.parametrize("checkpoint", [TRIM_HORIZON, AT_TIMESTAMP, at(5), SHARD_END])
def test_the_first_record_read_is_unknown_of_a_lease_that_is_not_at_latest(
    checkpoint: ExtendedSequenceNumber,
) -> None:
    assert Lease(LeaseKey("s"), 1, checkpoint, lanes=(at(7),)).first_read is None
