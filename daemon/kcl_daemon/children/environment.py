"""The environment of children: the daemon's without its own secrets, with more, or without what gives access to AWS. Pure.

Owns which variables those are, and the names of those that children are told by. A child of the same user can still read
the daemon's own environment in `/proc`, and its files: whoever does not trust a child gives it a user of its own
(`childUser`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kcl_daemon.config.variables import normal

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
# What the OTLP exporter of the daemon sends with its figures, such as a key: for all signals, or for one of them.
_OTLP_PREFIX: Final = "OTEL_EXPORTER_OTLP_"
_OTLP_HEADERS: Final = "HEADERS"
# Who has it reads the status page; in any spelling that a property's variable may have.
_ADMIN_TOKEN: Final = "kcladmintoken"  # noqa: S105 - the name of the variable
STREAM_NAME: Final = "KCL_STREAM_NAME"
STREAM_ARN: Final = "KCL_STREAM_ARN"
SHARD_ID: Final = "KCL_SHARD_ID"
LOG_MESSAGES: Final = "KCL_LOG_MESSAGES"
# SDKs ask the instance for the credentials of its role where they find none.
_NO_METADATA: Final = {"AWS_EC2_METADATA_DISABLED": "true"}


def environment_of(
    inherited: Mapping[str, str], more: Mapping[str, str], *, credentials: bool
) -> dict[str, str]:
    """The environment of a child.

    Args:
        inherited: the daemon's. Neither the token of its status page is passed on, nor what would tell a child that it may
            log by messages. Names of streams are: processors may have been given them by whoever starts the daemon.
        more: wins over it.
        credentials: whether those of the daemon may be found in it: of AWS, and of where its metrics are posted to.
    """
    kept = {
        name: value for name, value in inherited.items() if name != LOG_MESSAGES and not _is_admin_token(name)
    }
    if credentials:
        return {**kept, **more}
    kept = {name: value for name, value in kept.items() if not _gives_access(name)}
    return {**kept, **_NO_METADATA, **more}


def _is_admin_token(name: str) -> bool:
    return normal(name) == _ADMIN_TOKEN


def _gives_access(name: str) -> bool:
    if name.startswith(_OTLP_PREFIX) and name.endswith(_OTLP_HEADERS):
        return True
    return name.startswith(_PREFIX) and name not in _HARMLESS and not name.startswith(_ENDPOINTS)
