"""Properties from the environment: `KCL_` and a property's name override the file; `${NAME}` in values, where asked for.

Pure: works on the mapping that it is given.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from kcl_daemon.config.kinds import Refused
from kcl_daemon.config.properties import Entry
from kcl_daemon.config.variables import PREFIX, given, normal

_REFERENCE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


def variable_for(key: str) -> str:
    """How a property is usually written as a variable: `failoverTimeMillis` is `KCL_FAILOVER_TIME_MILLIS`."""
    words = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", key.replace(".", "_"))
    return PREFIX + words.upper()


def overrides(environment: Mapping[str, str], names: Iterable[str]) -> Iterator[Entry]:
    """The entries of an environment, by name of the variable; an empty variable is none, nor is a service link.

    A variable that is like no name is given with the key as written, so that it is told like any unknown property.

    Args:
        environment: variables of this process.
        names: all that properties are called.
    """
    by_normal = {normal(name): name for name in names}
    for variable, value in given(environment):
        written = variable[len(PREFIX) :]
        yield Entry(by_normal.get(normal(written), written), value, 0, variable)


def expanded(text: str, environment: Mapping[str, str]) -> str:
    """The text with each `${NAME}` and `${NAME:-DEFAULT}` replaced, once: what comes in is not looked at again.

    Raises:
        Refused: a variable is not set and has no default.
    """

    def value(match: re.Match[str]) -> str:
        name, default = match[1], match[2]
        # As a shell has it: an empty variable with a default is one that is not set.
        found = environment.get(name) or default if default is not None else environment.get(name)
        if found is None:
            raise Refused(
                f"the environment variable {name} is not set; set it, or write ${{{name}:-DEFAULT}}"
            )
        return found

    end = text.rfind("}") + 1  # none ends behind it, and each would be looked for up to the end of the text
    return _REFERENCE.sub(value, text[:end]) + text[end:]
