"""What was seen of an application, as JSON for scripts: the schema that docs/operations-leases.md describes.

Pure. Names and meanings stay; what is added later comes under new names, and `schema` counts what breaks.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Final, TypeAlias

from kcl_daemon.assignment.plan import Move
from kcl_daemon.cli.leases_seen import Explained, Seen, WorkerView, summary, worker_views
from kcl_daemon.cli.leases_view import notes
from kcl_daemon.leases.lease import Lease

SCHEMA: Final = 1

# Any shape that json writes; a closed alias would only repeat it.
_Document: TypeAlias = dict[str, object]


def list_json(seen: Seen, *, with_finished: bool) -> str:
    """The document of `leases list`, every value in full."""
    leases = [lease for lease in seen.leases if with_finished or not lease.is_finished]
    return _text({**_common(seen), "leases": [_lease(lease, seen) for lease in leases]})


def explain_json(explained: Explained) -> str:
    """The document of `leases explain`."""
    seen = explained.seen
    return _text(
        {
            **_common(seen),
            "watched_s": round(seen.watched_s, 3),
            "failover_s": seen.failover_s,
            "balance_s": explained.balance_s,
            "abandoned": sorted(seen.fleet.abandoned),
            "overdue": sorted(seen.fleet.overdue),
            "moves": [_move(move, explained) for move in explained.plan.moves],
            "unplaced": sorted(explained.plan.unplaced),
            "notes": list(notes(seen)),
        }
    )


def _common(seen: Seen) -> _Document:
    origin, leader = seen.origin, seen.leader
    return {
        "schema": SCHEMA,
        "application": origin.application,
        "stream": origin.stream,
        "layout": origin.layout.value,
        "layout_reason": origin.reason,
        "tables": list(origin.tables),
        "leader": None
        if leader is None
        else {
            "worker": leader.worker,
            "leads": leader.leads,
            "released": leader.released,
            "lease_s": leader.lease_s,
            "silent_s": round(leader.silent_s, 3),
        },
        "summary": asdict(summary(seen)),
        "workers": [_worker(worker) for worker in worker_views(seen)],
        "unreadable_rows": [asdict(row) for row in seen.unreadable],
    }


def _worker(worker: WorkerView) -> _Document:
    return {
        "worker": worker.worker_id,
        "alive": worker.alive,
        "leader": worker.leads,
        "leases": worker.leases,
        "last_report_s": worker.last_report_s,
        "report_age_s": None if worker.report_age_s is None else round(worker.report_age_s, 3),
        "cpu_percent": worker.cpu_percent,
        "cpu_failed": worker.cpu_failed,
    }


def _lease(lease: Lease, seen: Seen) -> _Document:
    hashes = lease.hash_range
    pending = lease.pending_checkpoint
    lag = None if seen.lags is None else seen.lags.get(lease.lease_key)
    return {
        "lease": lease.lease_key,
        "owner": lease.actual_owner,
        "handoff_to": None if lease.checkpoint_owner is None else lease.lease_owner,
        "abandoned": lease.lease_key in seen.fleet.abandoned if seen.could_tell_abandoned else None,
        "finished": lease.is_finished,
        "degraded_by": lease.degraded_by,
        "checkpoint": str(lease.checkpoint.sequence_number),
        "sub_sequence_number": lease.checkpoint.sub_sequence_number,
        "pending_checkpoint": None if pending is None else str(pending),
        "counter": lease.lease_counter,
        "owner_switches_since_checkpoint": lease.owner_switches_since_checkpoint,
        "throughput_kib_per_s": lease.throughput_kbps,
        "lag_ms": None if lag is None else lag.millis,
        "lag_unknown_because": None if lag is None or lag.millis is not None else lag.unknown_because,
        "parents": sorted(lease.parent_shard_ids),
        "children": sorted(lease.child_shard_ids),
        # As text: they are beyond what JSON numbers keep in most languages.
        "hash_range": None if hashes is None else [str(hashes.start), str(hashes.end)],
    }


def _move(move: Move, explained: Explained) -> _Document:
    return {
        "lease": move.lease.lease_key,
        "from": move.lease.actual_owner,
        "to": move.to,
        "how": move.how.value,
        "when": "next look" if explained.is_at_once(move) else "next balancing",
        "reason": move.reason,
    }


def _text(document: _Document) -> str:
    return json.dumps(document, indent=2)
