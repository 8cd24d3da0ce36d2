"""What one property is: the shape of the rows in the tables of properties.

Pure. The rows themselves are in `keys` and the modules that it is put together from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kcl_daemon.config.kinds import LONG_MAX, Kind, whole_number

MILLISECONDS: Final = whole_number(1, LONG_MAX, "milliseconds")
MILLISECONDS_OR_NONE: Final = whole_number(0, LONG_MAX, "milliseconds")


@dataclass(frozen=True, slots=True)
class Key:
    """One property.

    Args:
        name: as Java has it; names are case-sensitive.
        kind: how its value is read.
        target: the field of `Settings` that it fills, as a dotted path.
        meaning: one line for the reference.
        aliases: other names of the same property; the one that comes last in the file counts.
        default: what the reference says where the default of `Settings` does not tell it.
        required: whether the daemon cannot start without it.
        blank_is_absent: whether an empty value is the same as no line, as in Java.
        extension: whether the Java daemon does not know it from a file; it ignores it.
    """

    name: str
    kind: Kind
    target: str
    meaning: str
    aliases: tuple[str, ...] = ()
    default: str | None = None
    required: bool = False
    blank_is_absent: bool = False
    extension: bool = False
