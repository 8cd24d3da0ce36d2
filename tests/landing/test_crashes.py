"""A lander is killed at each point of its work; the next one goes on, and each record is in the log once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from kcl_landing.log import PAGE
from tests.landing.daemon import Refused, ShardOfDaemon, given
from tests.landing.landers import Landed, LanderThread, options
from tests.landing.logs import verify

RECORDS = 20
SEGMENT = ("before-create", "after-create", "before-manifest", "after-manifest")
EVERY_DAY = [(point, 1) for point in SEGMENT]
LONGER = [*((point, nth) for point in SEGMENT for nth in (2, 7)), ("before-page", 1), ("after-page", 1)]
MOMENTS = [*EVERY_DAY, *(pytest.param(*each, marks=pytest.mark.prove) for each in LONGER)]


def give_all(relay: ShardOfDaemon, records: int, *, from_checkpoint: bool) -> None:
    """As the daemon does: from the lander's own position on, or again from the lease's checkpoint."""
    begin = relay.initialize()[0]
    if from_checkpoint:
        begin = relay.checkpoint[0]
    for number in range(max(begin, 0) + 1, records + 1):
        relay.give(given(number, number))
    relay.end(["child"])


@pytest.mark.parametrize("from_checkpoint", [False, True])
@pytest.mark.parametrize(("point", "nth"), MOMENTS)
def test_a_lander_that_is_killed_leaves_each_record_once(
    tmp_path: Path, point: str, nth: int, from_checkpoint: bool
) -> None:
    records = PAGE + RECORDS if "page" in point else RECORDS
    chosen = options(tmp_path, max_bytes=1)  # a segment for each batch
    first = msgspec.json.encode(chosen).decode()
    killed = subprocess.Popen([sys.executable, "-m", "tests.landing.doomed", first, point, str(nth)])
    checkpoint = None
    with killed:
        try:
            with ShardOfDaemon(Path(chosen.socket)) as relay:
                try:
                    give_all(relay, records, from_checkpoint=from_checkpoint)
                except Refused:
                    checkpoint = relay.checkpoint
        finally:
            killed.kill()
    assert killed.returncode == -9
    assert checkpoint is not None, "it was not killed"
    again = options(tmp_path, max_bytes=1)
    with LanderThread(again), ShardOfDaemon(Path(again.socket), checkpoint=checkpoint, token=2) as relay:
        give_all(relay, records, from_checkpoint=from_checkpoint)
        assert relay.is_finished
    landed = Landed.at(again)
    assert landed.numbers() == list(range(1, records + 1))
    assert landed.entries[-1].children == ("child",)
    assert verify(landed.store, info=landed.info)[1] == []
