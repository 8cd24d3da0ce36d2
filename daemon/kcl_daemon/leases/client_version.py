"""How far an application has come from KCL 2.x to 3.x, and what that makes each worker do.

Owns the row `Migration3.0`, the version a worker starts in, the changes it follows while it runs, and the parts that
run in each version. The parts are given as what should be there, not as what to start: a loop compares and makes up
the difference, as often as it takes. So a step that fails, such as building the index, is simply done again. (KCL skips
the rest of its start in that case, and for good where another worker created the row first.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Final, TypeAlias

from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.leases.state_row import Creation, Past, Refusal, StateCodec, StateRow
from kcl_daemon.leases.table import RowUpdate


class ClientVersion(StrEnum):
    """What the fleet does; the values are KCL's. INIT is never in a row, only in its history."""

    INIT = "CLIENT_VERSION_INIT"
    UPGRADE_FROM_2X = "CLIENT_VERSION_UPGRADE_FROM_2X"
    V3X_WITH_ROLLBACK = "CLIENT_VERSION_3X_WITH_ROLLBACK"
    V2X = "CLIENT_VERSION_2X"
    V3X = "CLIENT_VERSION_3X"


class ClientVersionConfig(StrEnum):
    """What an operator asks for (`clientVersionConfig`); the values are KCL's."""

    V2X_PHASE_1 = "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X_PHASE1"
    V2X = "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X"
    V3X = "CLIENT_VERSION_CONFIG_3X"


VersionRow: TypeAlias = StateRow[ClientVersion]

CODEC: Final[StateCodec[ClientVersion]] = StateCodec(
    row_key="Migration3.0",
    entity="CLIENT_VERSION_MIGRATION",
    attribute="cv",
    states=tuple(version for version in ClientVersion if version is not ClientVersion.INIT),
)

POLL_EVERY_S: Final = 60.0
"""Every worker reads the row this often, the first time after this and a random part of `POLL_JITTER_S`."""
POLL_JITTER_S: Final = 30.0


class AssignmentMode(Enum):
    """Who decides which leases a worker holds."""

    TAKING = "each worker takes"
    ASSIGNED = "the leader assigns"


class LeaderKind(Enum):
    """How the leader is found."""

    SHUFFLE = "shuffle of the lease owners"
    LOCK = "lock row"


class IndexNeed(Enum):
    """What a worker wants of the index by lease owner."""

    NONE = "not used, not created"
    CREATE = "created if it is missing; no worker waits for it"
    USE = "used if it exists, never created: a rollback may be about to remove it"


@dataclass(frozen=True, slots=True)
class Components:
    """What runs on a worker (KCL: DynamicMigrationComponentsInitializer).

    Args:
        assignment: how it comes by leases.
        leader: how it knows whether it leads.
        reports_metrics: whether it keeps its worker row up to date.
        index: what it wants of the index.
        assigner_runs: whether it assigns leases while it leads.
    """

    assignment: AssignmentMode
    leader: LeaderKind
    reports_metrics: bool
    index: IndexNeed
    assigner_runs: bool


class Part(Enum):
    """One of the `Components`, where the order of changes matters."""

    METRICS = "reports_metrics"
    INDEX = "index"
    ASSIGNMENT = "assignment"
    LEADER = "leader"
    ASSIGNER = "assigner_runs"


@dataclass(frozen=True, slots=True)
class Start:
    """The version to start in, for what reason, and what to write first.

    Where the write is refused another worker was quicker: read the row again and decide anew.
    """

    version: ClientVersion
    write: Creation | RowUpdate | None
    reason: str


@dataclass(frozen=True, slots=True)
class Switch:
    """Change to a version while running.

    Args:
        version: the new one.
        order: the parts to bring to `components(version)`, in this order.
        last: nothing follows; the row need not be read any more.
        reason: for people.
    """

    version: ClientVersion
    order: tuple[Part, ...]
    last: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Stay:
    """Go on as before."""

    reason: str


_2X: Final = Components(
    AssignmentMode.TAKING,
    LeaderKind.SHUFFLE,
    reports_metrics=False,
    index=IndexNeed.NONE,
    assigner_runs=False,
)
_COMPONENTS: Final[Mapping[ClientVersion, Components]] = {
    ClientVersion.INIT: _2X,
    ClientVersion.V2X: _2X,
    ClientVersion.UPGRADE_FROM_2X: Components(
        AssignmentMode.TAKING,
        LeaderKind.SHUFFLE,
        reports_metrics=True,
        index=IndexNeed.CREATE,
        assigner_runs=False,
    ),
    ClientVersion.V3X_WITH_ROLLBACK: Components(
        AssignmentMode.ASSIGNED,
        LeaderKind.LOCK,
        reports_metrics=True,
        index=IndexNeed.USE,
        assigner_runs=True,
    ),
    ClientVersion.V3X: Components(
        AssignmentMode.ASSIGNED,
        LeaderKind.LOCK,
        reports_metrics=True,
        index=IndexNeed.CREATE,
        assigner_runs=True,
    ),
}

_CHANGES: Final[Mapping[tuple[ClientVersion, ClientVersion], tuple[Part, ...]]] = {
    (ClientVersion.UPGRADE_FROM_2X, ClientVersion.V3X_WITH_ROLLBACK): (
        Part.ASSIGNMENT,
        Part.LEADER,
        Part.ASSIGNER,
    ),
    (ClientVersion.UPGRADE_FROM_2X, ClientVersion.V2X): (Part.METRICS,),
    (ClientVersion.V3X_WITH_ROLLBACK, ClientVersion.V2X): (
        Part.METRICS,
        Part.ASSIGNMENT,
        Part.ASSIGNER,
        Part.LEADER,
    ),
    (ClientVersion.V3X_WITH_ROLLBACK, ClientVersion.V3X): (Part.INDEX,),
    (ClientVersion.V2X, ClientVersion.UPGRADE_FROM_2X): (Part.INDEX, Part.METRICS),
}


def components(version: ClientVersion) -> Components:
    """What runs in a version."""
    return _COMPONENTS[version]


def start(
    config: ClientVersionConfig,
    stored: VersionRow | None,
    *,
    me: WorkerId,
    now_ms: int,
    key_attribute: str,
) -> Start:
    """The version in which a worker starts (KCL: MigrationClientVersionStateInitializer).

    The stored row decides. The first worker writes it, from its own settings; one that asks for 3.x ends the rollback period.

    Args:
        config: what its settings ask for.
        stored: the row as a consistent read just showed it.
        me: our worker id.
        now_ms: epoch milliseconds.
        key_attribute: of the table that holds the row.
    """
    if stored is None:
        return _first(config, me=me, now_ms=now_ms, key_attribute=key_attribute)
    if config is ClientVersionConfig.V3X and stored.state is ClientVersion.V3X_WITH_ROLLBACK:
        after = stored.followed_by(ClientVersion.V3X, by=me, at_ms=now_ms)
        update = CODEC.update(stored, after, key_attribute=key_attribute)
        return Start(after.state, update, f"{config} ends the time in which rollback is possible")
    return Start(stored.state, None, f"{stored.by} set {stored.state}")


def _first(config: ClientVersionConfig, *, me: WorkerId, now_ms: int, key_attribute: str) -> Start:
    if config is ClientVersionConfig.V2X_PHASE_1:
        return Start(ClientVersion.INIT, None, f"{config} writes nothing")
    upgrading = config is ClientVersionConfig.V2X
    version = ClientVersion.UPGRADE_FROM_2X if upgrading else ClientVersion.V3X
    row = StateRow(version, me, now_ms, (Past(str(ClientVersion.INIT), me, now_ms),))
    return Start(version, CODEC.creation(row, key_attribute=key_attribute), f"first worker with {config}")


def follow(current: ClientVersion, stored: VersionRow | Refusal | None) -> Switch | Stay | Refusal:
    """What a running worker does about the row; after a Refusal it changes nothing and keeps reading. 3.x is final."""
    if current is ClientVersion.V3X or current is ClientVersion.INIT:
        return Stay(f"a worker in {current} changes only by a restart")
    if isinstance(stored, Refusal):
        return stored
    if stored is None:
        return Refusal(
            f"row {CODEC.row_key} is gone while this worker runs in {current}",
            "it was deleted; restart a worker to write it again",
        )
    if stored.state is current:
        return Stay(f"{stored.by} set {stored.state}")
    order = _CHANGES.get((current, stored.state))
    if order is None:
        return Refusal(
            f"{stored.by} set {stored.state}, which cannot follow {current} on a running worker",
            "restart this worker",
        )
    last = stored.state is ClientVersion.V3X
    return Switch(stored.state, order, last=last, reason=f"{stored.by} set {stored.state}")
