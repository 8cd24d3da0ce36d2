"""The reshard tests once more, with a Kinesis that others have written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.process import test_reshard_process as reshard
from tests.process.local import Local

pytestmark = [pytest.mark.peer, pytest.mark.timeout(300)]


def test_two_daemons_follow_four_generations_and_repeat_nothing(local: Local, tmp_path: Path) -> None:
    reshard.test_two_daemons_follow_four_generations_and_repeat_nothing(local, tmp_path)


def test_a_daemon_killed_during_a_reshard_loses_nothing(local: Local, tmp_path: Path) -> None:
    reshard.test_a_daemon_killed_during_a_reshard_loses_nothing(local, tmp_path)


def test_a_stream_that_was_resharded_while_nobody_ran_is_read_in_order(local: Local, tmp_path: Path) -> None:
    reshard.test_a_stream_that_was_resharded_while_nobody_ran_is_read_in_order(local, tmp_path)
