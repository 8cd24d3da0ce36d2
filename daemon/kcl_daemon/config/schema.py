"""A JSON Schema (draft 2020-12) for editors: `kcl-daemon check --schema`.

It is looser than `check`, never stricter, but for two things: a key that `check` only warns of is refused, and values
are what YAML makes of them, so a number may be one.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any, Final

from kcl_daemon.config.kinds import ARN_OF_TABLE, Form, InvalidValue, Key, in_any_case
from kcl_daemon.config.load import INSTEAD, default_of, field_of, value_text
from kcl_daemon.config.services import CLIENT_PREFIXES, SPELLINGS
from kcl_daemon.config.settings import BY_NAME, DEFAULTS, INERT, KEYS
from kcl_daemon.config.spark import CONF_PREFIX, REMOVED

Schema = dict[str, Any]

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_SCALARS: Final = ["string", "number", "boolean"]
_TYPES: Final = {"json": ["string", "object", "array"]}
# With expandEnvironment it is replaced, whatever the property.
_REFERENCE: Final[Schema] = {"type": "string", "pattern": r"\$\{"}
_BLANKS: Final = r"[\x00-\x20]*"
_LINK: Final = re.compile(r"\[([^\[\]]*+)\]\([^()]*+\)")


def document() -> Schema:
    properties = {key.name: _property(key) for key in KEYS}
    for key in KEYS:
        also = {**properties[key.name], "description": f"The same as {key.name}.", "x-same-as": key.name}
        properties |= dict.fromkeys(key.aliases, also)
    for name, why in INERT.items():
        properties[name] = {"description": f"Has no effect: {why}.", "deprecated": True}
    for name, why in REMOVED.items():
        properties[name] = {"description": f"{name} {why}", "not": {}}
    return {
        "$schema": DIALECT,
        "title": "Properties of kcl-daemon",
        "type": "object",
        "properties": dict(sorted(properties.items())),
        "patternProperties": dict(_families()),
        "additionalProperties": False,
        "allOf": [_required(key) for key in KEYS if key.required],
    }


def _families() -> Iterator[tuple[str, Schema]]:
    conf = "Handed to Spark under the name that follows."
    yield f"^{re.escape(CONF_PREFIX)}.", {"type": _SCALARS, "description": conf}
    nested = "Has no effect: the daemon has its own timeouts, retries and connections for AWS calls."
    clients = "|".join(CLIENT_PREFIXES)
    yield rf"^({clients})\.(?!httpClientBuilder\.)[^.]+\.", {"description": nested, "deprecated": True}
    provider = BY_NAME["AwsCredentialsProvider"]
    for name in SPELLINGS:
        if name.startswith(provider.name):
            rest = re.escape(name.removeprefix(provider.name))
            yield f"^{in_any_case(provider.name)}{rest}$", _value(provider)


def _required(key: Key) -> Schema:
    others = (BY_NAME[each] for each in INSTEAD.get(key.name, ()))
    spellings = (spelling for each in (key, *others) for spelling in (each.name, *each.aliases))
    return {"anyOf": [{"required": [each]} for each in spellings]}


def _property(key: Key) -> Schema:
    text = _LINK.sub(r"\1", meaning_of(key)).replace("`", "")
    default = default_of(key).replace("`", "")
    default = f"{default[0].upper()}{default[1:]}" if key.required else f"Default: {default}"
    made: Schema = {
        "description": f"{text} Allowed: {key.kind.allowed}. {default}.",
        "x-section": key.target.partition(".")[0],
        "x-java": not key.extension,
        **_value(key),
    }
    if key.default is None and not key.required:
        value = field_of(DEFAULTS, key.target)
        made["default"] = value if isinstance(value, bool | int | float) else value_text(value)
    return made


def _value(key: Key) -> Schema:
    form = key.kind.form
    if key.name == "streamName":  # the adapter 1.x has the ARN of a table's stream here
        form = Form(f"{form.pattern}|{ARN_OF_TABLE}")
    choices = [*_choices(form), _REFERENCE]
    if key.blank_is_absent or _takes_nothing(key):
        choices.append({"enum": [None, ""]})
    return {"anyOf": choices}


def _takes_nothing(key: Key) -> bool:
    try:
        key.kind.read("")
    except InvalidValue:
        return False
    return True


def _choices(form: Form) -> Iterator[Schema]:
    if form.words:
        if form.type == "boolean":
            yield {"enum": [True, False]}
            yield {"enum": [1, 0]}
        else:
            yield {"enum": list(form.words)}
        yield _text("|".join(map(in_any_case, form.words)))
    if form.type in {"integer", "number"}:
        least = "minimum" if form.type == "integer" else "exclusiveMinimum"
        limits = {least: form.low, "maximum": form.high}
        yield {"type": form.type, **{name: limit for name, limit in limits.items() if limit is not None}}
    if form.pattern:
        # A number's text is not compared with its limits.
        yield {**_text(form.pattern), **({} if form.type in {"integer", "number"} else _types(form))}
    elif not form.words:
        yield _types(form)


def _types(form: Form) -> Schema:
    return {"type": _TYPES.get(form.type, _SCALARS)}


def _text(pattern: str) -> Schema:
    return {"type": "string", "pattern": rf"^{_BLANKS}(?:{pattern}){_BLANKS}$"}


def meaning_of(key: Key) -> str:
    section, _, name = key.target.rpartition(".")
    owner = type(field_of(DEFAULTS, section) if section else DEFAULTS)
    return key.meaning or docstrings(owner.__module__)[owner.__name__, name]


@cache
def docstrings(module: str) -> dict[tuple[str, str], str]:
    """The interpreter does not keep them."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {
        (node.name, name): " ".join(text.split())
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        for name, text in _below_fields(node)
    }


def _below_fields(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for pair in pairwise(node.body):
        match pair:
            case (ast.AnnAssign(target=ast.Name(name)), ast.Expr(value=ast.Constant(value=str(text)))):
                yield name, text
            case _:
                pass
