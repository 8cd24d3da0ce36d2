"""Which variables of the environment are properties: `KCL_` and a name, in any spelling, unless Kubernetes has set them.

Pure. Imports next to nothing: health checks, which are started every few seconds, read the environment as the daemon does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

PREFIX: Final = "KCL_"
# Of others, or for others.
_NOT_OURS: Final = frozenset({"KCL_DEMO_LEDGER", "KCL_MVN_REPO_SEARCH_URL", "KCL_TEST_MARK"})
_SERVICE: Final = r"KCL(?:_[A-Z0-9_]+)?"
_PORT_OF_IT: Final = r"PORT_[0-9]+_(?:TCP|UDP|SCTP)"
_LINK_BY_NAME: Final = re.compile(
    # The first group keeps what cannot be such a name from being tried at each of its underlines.
    rf"(?=[A-Z0-9_]*+\Z){_SERVICE}_(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?|{_PORT_OF_IT}_(?:PROTO|PORT|ADDR))"
)
_LINK_WITH_ADDRESS: Final = re.compile(rf"{_SERVICE}_(?:PORT|{_PORT_OF_IT})")
_ADDRESS: Final = re.compile(r"(?:tcp|udp|sctp)://\S+:[0-9]+")


def normal(name: str) -> str:
    """A name without what environments cannot tell apart: case, and how words are separated."""
    return re.sub(r"[._-]", "", name).lower()


def is_service_link(variable: str, value: str) -> bool:
    """Whether Kubernetes has set a variable, since there is a Service whose name begins with `kcl`.

    A Service `kcl-admin` gives each pod of its namespace `KCL_ADMIN_PORT=tcp://10.0.0.1:80`, `KCL_ADMIN_SERVICE_HOST` and more,
    unless the pod has `enableServiceLinks: false`.
    """
    if _LINK_BY_NAME.fullmatch(variable):
        return True
    return bool(_LINK_WITH_ADDRESS.fullmatch(variable) and _ADDRESS.fullmatch(value))


def given(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Name and value of each variable that is meant for us, in order of names; an empty variable is none."""
    for variable in sorted(environment):
        value = environment[variable]
        is_ours = variable.upper().startswith(PREFIX) and variable not in _NOT_OURS
        if is_ours and value and not is_service_link(variable, value):
            yield variable, value


def given_for(key: str, environment: Mapping[str, str]) -> tuple[str, str] | None:
    """The variable that counts for a property, and its value; None: there is none."""
    wanted = normal(PREFIX + key)
    found = [each for each in given(environment) if normal(each[0]) == wanted]
    return found[-1] if found else None
