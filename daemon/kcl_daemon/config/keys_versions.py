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
        "Whether the application migrates from KCL 2.x: `..._COMPATIBLE_WITH_2X` until all workers are "
        "3.x and you have observed the upgrade for a while, then `..._3X`. See `kcl-daemon migrate`.",
    ),
    Key(
        "maxLeasesToStealAtOneTime",
        whole_number(1, INT_MAX, "leases"),
        "leases.max_leases_to_steal",
        "In a fleet with 2.x workers: maximum number of leases that this worker takes from live workers "
        "in one run.",
    ),
    Key(
        "enablePriorityLeaseAssignment",
        truth(),
        "leases.priority_assignment",
        "In a fleet with 2.x workers: whether leases that have not been renewed for three failover "
        "times are taken regardless of a fair share.",
    ),
)
