"""Which files of the source decide, and which tests decide about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Subject:
    """A file of the source, and the files of tests that must notice a fault in it.

    Args:
        package: its row in the sum.
        path: of the source.
        module: its name for an import.
        tests: files below `tests/`; those which fail soonest come first.
    """

    package: str
    path: str
    module: str
    tests: tuple[str, ...]


def _daemon(package: str, name: str, *tests: str) -> Subject:
    path = f"daemon/kcl_daemon/{package}/{name}.py"
    return Subject(package, path, f"kcl_daemon.{package}.{name}", _files(f"unit/{package}", tests))


def _landing(name: str, *tests: str) -> Subject:
    path = f"clients/landing/kcl_landing/{name.replace('.', '/')}.py"
    return Subject("landing", path, f"kcl_landing.{name}", _files("landing", tests))


def _files(folder: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """`test_x` is in the folder of its package, `fleet/test_x` in that one of the unit tests."""
    return tuple(f"tests/unit/{name}.py" if "/" in name else f"tests/{folder}/{name}.py" for name in names)


SUBJECTS: Final = (
    _daemon("leases", "fence", "test_fence"),
    _daemon("leases", "expiry", "test_expiry", "test_expiry_predecessor"),
    _daemon("leases", "leader", "test_leader", "test_hostile_rows"),
    _daemon("leases", "holds", "test_holds", "test_hostile_rows"),
    _daemon("leases", "layout", "test_layout", "test_hostile_rows"),
    _daemon(
        "leases", "lease",
        "test_stream_identity", "test_row_streams", "test_lease_checkpoint", "test_lease_throughput",
    ),
    _daemon(
        "leases", "row",
        "test_row", "test_row_conditions", "test_row_documented", "test_row_streams", "test_row_taking",
        "test_row_bounds", "test_hostile_rows",
    ),
    _daemon("leases", "worker_row", "test_worker_row", "test_hostile_rows", "migrations/test_one_table_rules"),
    _daemon(
        "shards", "lineage",
        "test_lineage", "test_another_stream", "test_children", "test_holes", "test_sync", "test_cleanup", "test_reset",
        "test_table_streams",
    ),
    _daemon("shards", "sync", "test_sync", "test_cleanup", "test_reset", "test_holes"),
    _daemon("shards", "table_streams", "test_table_streams"),
    _daemon("shards", "snapshot", "test_snapshot"),
    _daemon(
        "assignment", "plan",
        "test_plan_by_count", "test_plan_at_shutdown", "test_plan_by_count_restated",
        "test_utilization_placing", "test_utilization_moves",
    ),
    _daemon(
        "assignment", "load",
        "test_load", "test_utilization_placing", "test_utilization_moves", "test_utilization_explained",
    ),
    _daemon(
        "assignment", "utilization",
        "test_utilization_restated", "test_utilization_placing", "test_utilization_moves", "test_utilization_explained",
    ),
    _daemon("records", "lane_window", "test_lane_window", "test_no_key"),
    _daemon("records", "letter_queue", "test_letter_queue"),
    _daemon("retrieval", "batch_window", "test_batch_window", "test_complete"),
    _daemon("retrieval", "byte_budget", "test_byte_budget"),
    _daemon("retrieval", "fair_share", "test_fair_share"),
    _daemon("retrieval", "auto_pace", "test_auto_pace", "test_polling_auto"),
    _landing("positions", "test_positions", "test_marks", "test_chain", "test_lander_marks"),
    _landing("marks", "test_marks", "test_lander_marks"),
    _landing("manifests", "test_manifests", "test_manifests_mended", "test_chain"),
    _landing("keeping.chain", "test_chain", "test_writers"),
    Subject(
        "client", "clients/python/kcl_client/_window.py", "kcl_client._window",
        ("tests/unit/client/test_window.py",),
    ),
    Subject(
        "protocol", "protocol/kcl_protocol/sequence.py", "kcl_protocol.sequence",
        ("tests/unit/protocol/test_sequence.py",),
    ),
)  # fmt: skip
