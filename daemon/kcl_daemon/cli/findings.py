"""What `kcl-daemon check --with-aws` has found, and how a call is tried for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from kcl_daemon.cli.failures import advice_for, describe
from kcl_daemon.errors import AwsError, ConfigurationError
from kcl_daemon.observe.redact import masked, on_one_line

_T = TypeVar("_T")

Finding = tuple[bool, str]
"""Whether it is good, and one line about it."""
NOT_TRIED: Final = ": NOT TRIED, as "


async def tried(findings: list[Finding], what: str, attempt: Callable[[], Awaitable[_T]]) -> _T | None:
    """What it gives; None, and a finding, where AWS refuses it."""
    try:
        return await attempt()
    except (AwsError, ConfigurationError) as error:
        findings.append((False, masked(on_one_line(f"{what}: {describe(error)}; {advice_for(error)}"))))
        return None


def not_tried(what: str, why: str) -> Finding:
    """What is not known must not look as if it were; it is no reason to call the check failed either."""
    return True, masked(on_one_line(f"{what}{NOT_TRIED}{why}"))
