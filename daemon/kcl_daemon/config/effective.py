"""What is in force, key by key: the value, and where it comes from.

Pure. Owns how values and defaults are written out, for the reference and for `kcl-daemon check`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

import javaproperties

from kcl_daemon.config.key import Key
from kcl_daemon.config.keys import (
    EXECUTABLE_NAME,
    EXPAND_ENVIRONMENT,
    INITIAL_POSITION,
    INITIAL_POSITION_EXTENDED,
    KEYS,
    REGION_NAME,
    STREAM_ARN,
    STREAM_NAME,
    WORKER_ID,
)
from kcl_daemon.config.keys_fan_out import RETRIEVAL_MODE
from kcl_daemon.config.keys_spark import CONF_PREFIX
from kcl_daemon.config.keys_streams import STREAM_ARNS
from kcl_daemon.config.load import Loaded
from kcl_daemon.config.properties import Entry
from kcl_daemon.config.settings import ChildSettings, Settings
from kcl_daemon.observe.redact import shown
from kcl_daemon.shards.shard import InitialPosition

_NOTHING: Final = Settings(application_name="", stream_name="", child=ChildSettings(command=()), worker_id="")
"""All defaults; the required ones stand empty."""


@dataclass(frozen=True, slots=True)
class Effective:
    """One key.

    Args:
        key: its name.
        value: what is in force, printable, secrets masked.
        origin: `FILE:LINE`, the variable of the environment, `default`, or what it was derived from.
        is_default: whether nobody wrote it.
    """

    key: str
    value: str
    origin: str
    is_default: bool


def effective(loaded: Loaded) -> Iterator[Effective]:
    """Every key that is acted on, in the order of the reference."""
    for key in KEYS:
        derived = _derived_from(key, loaded)
        entry = loaded.entries.get(key.name)
        if derived is None and (entry is None or key.name not in loaded.texts):
            yield Effective(key.name, _default_in_force(key, loaded.settings), "default", is_default=True)
            continue
        text = _in_force(key, loaded)
        if derived is not None or entry is None:
            origin = derived or ""
        else:
            origin = entry.variable or f"{loaded.file}:{entry.line}"
        yield Effective(key.name, shown(text, name=key.name), origin, is_default=False)


def as_properties(loaded: Loaded) -> str:
    """A properties file that means the same wherever it is read: overrides and variables are in it, secrets too."""
    # What DEFAULT means may depend on properties that nothing else depends on, and those are not written out.
    texts = {**loaded.texts, RETRIEVAL_MODE.name: word(loaded.settings.retrieval.mode)}
    values = {key.name: texts[key.name] for key in KEYS if key.name in texts}
    if loaded.settings.stream_arn is None and values.pop(STREAM_ARN.name, None) is not None:
        # What else is in it does not count, and where it would must not depend on where the file is read.
        values[STREAM_NAME.name] = loaded.settings.stream_name
        if loaded.settings.endpoints.region_name is not None:
            values[REGION_NAME.name] = loaded.settings.endpoints.region_name
        values = {key.name: values[key.name] for key in KEYS if key.name in values}
    values.pop(EXPAND_ENVIRONMENT.name, None)  # what they stood for is written out
    values |= {f"{CONF_PREFIX}{name}": value for name, value in loaded.settings.spark.conf}
    return "".join(f"{javaproperties.join_key_value(name, value, ' = ')}\n" for name, value in values.items())


def _in_force(key: Key, loaded: Loaded) -> str:
    """The value as it could stand in a file; as it does stand there where it is made of several parts."""
    value = field_of(loaded.settings, key.target)
    if key.kind.written is not None:
        return key.kind.written(value)
    if isinstance(value, int | float | str | Enum | InitialPosition):
        return word(value)
    return loaded.texts.get(key.name, "none")


def _default_in_force(key: Key, settings: Settings) -> str:
    if key is WORKER_ID:
        return shown(settings.worker_id)
    return default_of(key).replace("`", "")


def _derived_from(key: Key, loaded: Loaded) -> str | None:
    """What filled the field of a key that was not written, or overruled what was."""
    if STREAM_ARN.name in loaded.texts and (derived := _derived_from_arn(key, loaded)) is not None:
        return derived
    if loaded.settings.streams.arns and key is REGION_NAME and key.name not in loaded.entries:
        return STREAM_ARNS.name
    if key is RETRIEVAL_MODE and _is_default(loaded.entries.get(key.name)):
        return "default"
    if key is INITIAL_POSITION and INITIAL_POSITION_EXTENDED.name in loaded.texts:
        return INITIAL_POSITION_EXTENDED.name
    if key is EXECUTABLE_NAME and loaded.settings.spark.pipeline is not None:
        return "sparkPipeline"
    return None


def _derived_from_arn(key: Key, loaded: Loaded) -> str | None:
    names_region = loaded.settings.endpoints.region_name is not None
    if key is STREAM_NAME or (key is REGION_NAME and names_region and key.name not in loaded.entries):
        return STREAM_ARN.name
    if key is STREAM_ARN and loaded.settings.stream_arn is None:
        return "only its name is used"
    return None


def _is_default(entry: Entry | None) -> bool:
    return entry is None or entry.value.strip().upper() == "DEFAULT"


def default_of(key: Key) -> str:
    """The default as the reference shows it."""
    if key.default is not None:
        return key.default
    if key.required:
        return "required"
    return word(field_of(_NOTHING, key.target))


def field_of(settings: Settings, target: str) -> object:
    """The field that a key fills.

    Raises:
        LookupError: there is none.
    """
    value: object = settings
    for name in target.split("."):
        if not hasattr(value, name):
            raise LookupError(f"{target} is no field of the settings")
        value = getattr(value, name)
    return value


def word(value: object) -> str:
    """A value of the settings as it could stand in a file."""
    match value:
        case bool():
            return str(value).lower()
        case InitialPosition():
            return value.at.value if value.timestamp_s is None else f"{value.timestamp_s:.0f}"
        case Enum():
            return str(value.value)
        case _:
            return str(value)
