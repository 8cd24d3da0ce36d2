"""The commands' work on every kind of store."""

from __future__ import annotations

from kcl_landing.keeping.compact import Compactor
from kcl_landing.keeping.expire import Expirer, Rules
from kcl_landing.keeping.names import sorted_out
from kcl_landing.keeping.status import status
from kcl_landing.log import PAGE
from kcl_landing.store import LogStore
from tests.landing.logs import BEGIN_MS, INFO, planned, read, verify, write


def test_a_log_is_compacted_and_expires(log_store: LogStore) -> None:
    store = log_store
    write(store, PAGE + 3)
    everything = list(range(1, 3 * (PAGE + 3) + 1))
    for removed in (0, PAGE):
        compactor = Compactor(
            store, INFO, print, lambda: 1, target_bytes=10**6, grace_ms=not removed, writer="c"
        )
        assert compactor.run(sorted_out(INFO, store.listing("")), 1).removed == removed
        assert verify(store)[1] == []
        assert list(read(store, planned(store))) == everything
    gone = Expirer(store, INFO, print, at_ms=5, dry_run=False).run(
        sorted_out(INFO, store.listing("")), Rules(before_ms=BEGIN_MS + 1000 * (PAGE + 1)), 1
    )
    assert (gone.segments, gone.rows) == (2, 3 * (PAGE + 1))
    assert status(store, INFO).shards[0].segments == 2
    verdict, problems = verify(store)
    assert (problems, verdict.expired, verdict.notes) == ([], 0, [])
