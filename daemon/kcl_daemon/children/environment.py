"""The environment of children: the daemon's, with more, or without what gives access to AWS. Pure.

Owns which variables those are. A child of the same user can still read the daemon's own environment in `/proc`, and its
files: whoever does not trust a child gives it a user of its own (`childUser`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_PREFIX: Final = "AWS_"
# What tells an SDK where things are and how to ask. All else with the prefix may be, or lead to, a credential: also
# what future SDKs will read.
_HARMLESS: Final = frozenset(
    {
        "AWS_CA_BUNDLE",
        "AWS_DEFAULTS_MODE",
        "AWS_DEFAULT_OUTPUT",
        "AWS_DEFAULT_REGION",
        "AWS_EXECUTION_ENV",
        "AWS_MAX_ATTEMPTS",
        "AWS_REGION",
        "AWS_RETRY_MODE",
        "AWS_STS_REGIONAL_ENDPOINTS",
        "AWS_USE_DUALSTACK_ENDPOINT",
        "AWS_USE_FIPS_ENDPOINT",
    }
)
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS")
# SDKs ask the instance for the credentials of its role where they find none.
_NO_METADATA: Final = {"AWS_EC2_METADATA_DISABLED": "true"}


def environment_of(
    inherited: Mapping[str, str], more: Mapping[str, str], *, credentials: bool
) -> dict[str, str]:
    """The environment of a child.

    Args:
        inherited: the daemon's.
        more: wins over it.
        credentials: whether those of the daemon may be found in it.
    """
    if credentials:
        return {**inherited, **more}
    kept = {name: value for name, value in inherited.items() if not _gives_access(name)}
    return {**kept, **_NO_METADATA, **more}


def _gives_access(name: str) -> bool:
    return name.startswith(_PREFIX) and name not in _HARMLESS and not name.startswith(_ENDPOINTS)
