"""The properties of an application that comes from KCL 2.x, or still has workers of it.

Pure data, part of the table in `keys`.
"""

from __future__ import annotations

from typing import Final

from kcl_daemon.config.key import Key
from kcl_daemon.config.kinds import INT_MAX, choice, truth, whole_number
from kcl_daemon.leases.client_version import ClientVersionConfig

VERSION_KEYS: Final[tuple[Key, ...]] = (
    Key(
        "clientVersionConfig",
        choice({config.value: config for config in ClientVersionConfig}),
        "leases.client_version_config",
        "Whether the application comes from KCL 2.x: `..._COMPATIBLE_WITH_2X` until all workers are 3.x and the upgrade "
        "has been watched for a while, then `..._3X`. See `kcl-daemon migrate`.",
    ),
    Key(
        "maxLeasesToStealAtOneTime",
        whole_number(1, INT_MAX, "leases"),
        "leases.max_leases_to_steal",
        "Beside 2.x workers: most leases that this worker takes from living workers in one run.",
    ),
    Key(
        "enablePriorityLeaseAssignment",
        truth(),
        "leases.priority_assignment",
        "Beside 2.x workers: whether leases that stood still for three fail-over times are taken without regard to a "
        "fair share.",
    ),
)
