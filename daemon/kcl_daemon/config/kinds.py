"""Values are trimmed as in Java."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from math import isinf
from typing import Final, Generic, Literal, NoReturn, TypedDict, TypeVar, Unpack
from urllib.parse import urlsplit

from kcl_daemon.leases.lease import TableStream
from kcl_daemon.shards.lineage import InitialPosition, StartAt

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
AnyEnum = TypeVar("AnyEnum", bound=Enum)

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
PORT_MAX: Final = 65_535
# A larger number is probably in milliseconds.
TIME_MOST_S: Final = 253_402_300_799

_AGE_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_AGE = re.compile(r"(?:\d{1,9}(?:\.\d+)?[smhd])+")
_BLANKS: Final = "".join(map(chr, range(33)))
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+")
_DIGITS_MAX: Final = 40
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
# java.time.Duration without signs.
_DURATION = re.compile(
    r"P(?:(?P<days>[0-9]+)D)?"
    r"(?:T(?=[0-9])(?:(?P<hours>[0-9]+)H)?(?:(?P<minutes>[0-9]+)M)?(?:(?P<seconds>[0-9]+(?:[.,][0-9]{0,9})?)S)?)?",
    re.IGNORECASE | re.ASCII,
)
_SECONDS_OF: Final = {"days": 86_400, "hours": 3_600, "minutes": 60, "seconds": 1}
_MAX_TAGS: Final = 50
_TAG_KEY_CHARACTERS: Final = 128
_TAG_VALUE_CHARACTERS: Final = 256
_ARN = re.compile(
    r"arn:aws[a-z0-9-]*:kinesis:(?P<region>[a-z0-9-]+):(?P<account>[0-9]{12}):stream/(?P<name>[A-Za-z0-9_.-]{1,128})"
)


ARN_OF_TABLE: Final = r"arn:[a-z0-9-]*:dynamodb:[\s\S]+"
SOMETHING: Final = r"\S[\s\S]*"
_KEYS: Final = "keys"


class InvalidValue(ValueError):
    """The message is only the reason."""


@dataclass(frozen=True, slots=True)
class Form:
    """Refuses nothing that the kind reads.

    Args:
        pattern: of the whole trimmed text, the same in Python and in ECMAScript; empty: any text.
        words: in any case; beside a pattern or numbers these are further values.
        type: of the value in YAML.
        low: for numbers, with `high`; excluded if `type` is `number`.
    """

    pattern: str = ""
    words: tuple[str, ...] = ()
    type: Literal["string", "integer", "number", "boolean", "json"] = "string"
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class ValueKind(Generic[T_co]):
    """`written` is the reverse of `read`; None: `str`."""

    read: Callable[[str], T_co]
    allowed: str
    written: Callable[[object], str] | None = None
    form: Form = Form()


def in_any_case(word: str) -> str:
    """ECMAScript has no flag for it within a pattern."""
    return "".join(f"[{each.upper()}{each.lower()}]" if each.isalpha() else re.escape(each) for each in word)


def without_names(pattern: re.Pattern[str]) -> str:
    return re.sub(r"\?P<\w+>", "?:", pattern.pattern)


@dataclass(frozen=True, slots=True)
class StreamArn:
    arn: str
    region_name: str
    stream_name: str
    account_id: str

    @property
    def is_of_dynamodb(self) -> bool:
        return is_of_dynamodb(self.arn)


def is_of_dynamodb(arn: str | None) -> bool:
    return arn is not None and arn.split(":")[2:3] == ["dynamodb"]


def trimmed(text: str) -> str:
    return text.strip(_BLANKS)


def not_blank(text: str) -> str:
    word = trimmed(text)
    if not word:
        raise InvalidValue("empty; give a value or remove the line")
    return word


def whole_number(low: int, high: int, unit: str = "") -> ValueKind[int]:
    def read(text: str) -> int:
        word = not_blank(text)
        if not _WHOLE_NUMBER.fullmatch(word):
            raise InvalidValue("not a whole number")
        if len(word) > _DIGITS_MAX or not low <= (number := int(word)) <= high:
            raise InvalidValue("out of range")
        return number

    form = Form(_WHOLE_NUMBER.pattern, type="integer", low=low, high=high)
    return ValueKind(read, f"{low} to {high} {unit}".strip(), form=form)


def number(*, above: float, high: float, unit: str = "") -> ValueKind[float]:
    """Above `above`, never infinite."""

    def read(text: str) -> float:
        word = not_blank(text)
        if not _NUMBER.fullmatch(word):
            raise InvalidValue("not a number")
        if not above < (value := float(word)) <= high or isinf(value):
            raise InvalidValue("out of range")
        return value

    most = "" if isinf(high) else f", at most {high:g}"
    form = Form(_NUMBER.pattern, type="number", low=above, high=None if isinf(high) else high)
    return ValueKind(read, f"more than {above:g}{most} {unit}".strip(), form=form)


def duration() -> ValueKind[float]:
    def read(text: str) -> float:
        match = _DURATION.fullmatch(not_blank(text))
        parts = {unit: part for unit, part in match.groupdict().items() if part} if match else {}
        if not parts:
            raise InvalidValue("not a duration")
        seconds = sum(float(part.replace(",", ".")) * _SECONDS_OF[unit] for unit, part in parts.items())
        if not 0 < seconds <= LONG_MAX:
            raise InvalidValue("out of range")
        return seconds

    allowed = "more than 0, in ISO 8601 form with days, hours, minutes and seconds: P1D, PT15M, PT0.5S"
    pattern = re.sub("[PTDHMS]", lambda it: in_any_case(it[0]), without_names(_DURATION))
    return ValueKind(read, allowed, _as_iso_8601, Form(pattern))


def _as_iso_8601(value: object) -> str:
    """Fractions are written in seconds only, so that they are read back exactly."""
    assert isinstance(value, float), "durations are seconds"
    if not value.is_integer():
        return f"PT{value:.9f}".rstrip("0") + "S"
    left, parts = int(value), list[str]()
    for unit, seconds in _SECONDS_OF.items():
        count, left = divmod(left, seconds)
        parts.append(f"{count}{unit[0].upper()}" if count else "")
    days, time = parts[0], "".join(parts[1:])
    return f"P{days}T{time}" if time else f"P{days}"


def truth() -> ValueKind[bool]:
    words = {
        **dict.fromkeys(("true", "yes", "y", "on", "1"), True),
        **dict.fromkeys(("false", "no", "n", "off", "0"), False),
    }

    def read(text: str) -> bool:
        value = words.get(not_blank(text).lower())
        if value is None:
            raise InvalidValue("neither true nor false")
        return value

    return ValueKind(
        read, "true, yes, y, on, 1, false, no, n, off, 0", form=Form(words=tuple(words), type="boolean")
    )


def choice(values: Mapping[str, T], advice: Mapping[str, str] | None = None) -> ValueKind[T]:
    """In any case; `values` have capitals, `advice` has reasons for refused ones."""

    def read(text: str) -> T:
        word = not_blank(text).upper()
        if word not in values:
            raise InvalidValue((advice or {}).get(word, "not an allowed value"))
        return values[word]

    return ValueKind(read, " or ".join(values), form=Form(words=tuple(values)))


def member(members: type[AnyEnum]) -> ValueKind[AnyEnum]:
    return choice({str(each.value): each for each in members})


def tags() -> ValueKind[tuple[tuple[str, str], ...]]:
    """Java drops bad ones with a warning."""

    def read(text: str) -> tuple[tuple[str, str], ...]:
        pairs = dict(_tag(each) for each in not_blank(text).split(","))
        if len(pairs) > _MAX_TAGS:
            raise InvalidValue(f"more than {_MAX_TAGS} tags")
        return tuple(pairs.items())

    form = Form(r"[^=,]+=[\s\S]*")
    return ValueKind(read, f"KEY=VALUE, separated by commas; at most {_MAX_TAGS}", form=form)


def _tag(text: str) -> tuple[str, str]:
    key, equals, value = (trimmed(part) for part in text.partition("="))
    if not equals or not 1 <= len(key) <= _TAG_KEY_CHARACTERS or len(value) > _TAG_VALUE_CHARACTERS:
        raise InvalidValue(f"{trimmed(text)!r:.80} is not a tag")
    if key.lower().startswith("aws:"):
        raise InvalidValue("keys that begin with aws: are reserved by AWS")
    return key, value


def start_word() -> ValueKind[InitialPosition]:
    return choice(
        {"LATEST": InitialPosition(StartAt.LATEST), "TRIM_HORIZON": InitialPosition(StartAt.TRIM_HORIZON)},
        {
            "AT_TIMESTAMP": "to start at a time, set initialPositionInStreamExtended to epoch seconds",
            **dict.fromkeys(("EARLIEST", "OLDEST"), "Kinesis calls it TRIM_HORIZON"),
            "NEWEST": "Kinesis calls it LATEST",
        },
    )


def start_timestamp() -> ValueKind[InitialPosition]:
    seconds = whole_number(0, TIME_MOST_S, "seconds since 1970-01-01 UTC")

    def read(text: str) -> InitialPosition:
        try:
            number = seconds.read(text)
        except InvalidValue as refusal:
            word = trimmed(text)
            if word.isdecimal() and len(word) == 13:
                raise InvalidValue(f"out of range, these are milliseconds: write {word[:-3]}") from None
            if not word.isdecimal() and 0 <= (moment := moment_s(word) or -1) <= TIME_MOST_S:
                said = f"this is a time, not a number of seconds: write {moment:.0f}"
                raise InvalidValue(said) from None
            raise refusal from None
        return InitialPosition(StartAt.TIMESTAMP, float(number))

    return ValueKind(read, seconds.allowed, form=seconds.form)


def moment_s(text: str) -> float | None:
    """Epoch seconds of an ISO time (without a zone in UTC) or of epoch seconds."""
    try:
        if text.replace(".", "", 1).isdecimal():
            return float(text)
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


def age_s(text: str) -> float | None:
    """Of an age such as `90s` or `1h30m`."""
    if _AGE.fullmatch(text) is None:
        return None
    return sum(float(number) * _AGE_SECONDS[unit] for number, unit in re.findall(r"([\d.]+)([smhd])", text))


@dataclass(frozen=True, slots=True)
class RunUntil:
    """`time_ms` None: the time at which the run begins."""

    time_ms: int | None

    def __str__(self) -> str:
        return "tip" if self.time_ms is None else datetime.fromtimestamp(self.time_ms / 1000, UTC).isoformat()


def run_until() -> ValueKind[RunUntil | None]:
    def read(text: str) -> RunUntil:
        word = not_blank(text)
        if word.lower() == "tip":
            return RunUntil(None)
        seconds = moment_s(word)
        if seconds is None or not 0 <= seconds <= TIME_MOST_S:
            raise InvalidValue("neither tip nor a time")
        return RunUntil(round(seconds * 1000))

    form = Form(r"[.\d][\s\S]*", ("tip",))
    return ValueKind(read, "tip, or a time such as 2026-11-20T12:00:00Z", str, form)


def name(pattern: str, allowed: str, arn_property: str | None = None) -> ValueKind[str]:
    compiled = re.compile(pattern)

    def read(text: str) -> str:
        word = not_blank(text)
        if not compiled.fullmatch(word):
            is_arn = arn_property is not None and word.startswith("arn:")
            raise InvalidValue(f"this is an ARN; use {arn_property} for it" if is_arn else "not a valid name")
        return word

    return ValueKind(read, allowed, form=Form(pattern))


def check_port(digits: str | None) -> None:
    if digits is not None and not 1 <= int(digits) <= PORT_MAX:
        raise InvalidValue(f"{digits} is not a port; ports are 1 to {PORT_MAX}")


def endpoint() -> ValueKind[str]:
    allowed = "http://HOST, http://HOST:PORT or the same with https"

    def refuse(advice: str = "") -> NoReturn:
        raise InvalidValue(f"not a valid service endpoint{advice}")

    def read(text: str) -> str:
        word = not_blank(text)
        if not word.isascii() or not word.isprintable() or " " in word:
            refuse()
        if "://" not in word:
            scheme = "https" if "amazonaws.com" in word else "http"
            try:
                meant = f"; write {read(f'{scheme}://{word}')}"
            except InvalidValue:
                meant = ""
            refuse(meant)
        try:
            parts = urlsplit(word)
            good = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
        except ValueError:
            refuse()
        if not good or parts.query or parts.fragment:
            refuse()
        if parts.username is not None or parts.password is not None:
            raise InvalidValue("it has a user name; requests are signed and need none")
        return word

    return ValueKind(read, allowed, form=Form(f"{in_any_case('http')}[Ss]?://[^\\s?#]+"))


def stream_arn() -> ValueKind[StreamArn]:
    """KCL: KinesisClientLibConfigurator checks the same form."""

    def read(text: str) -> StreamArn:
        word = not_blank(text)
        if (of_table := TableStream.of(word)) is not None and is_of_dynamodb(word):
            return StreamArn(word, of_table.region, of_table.name, of_table.account)
        match = _ARN.fullmatch(word)
        if match is None:
            raise InvalidValue("not the ARN of a stream")
        return StreamArn(word, match["region"], match["name"], match["account"])

    allowed = (
        "arn:aws:kinesis:REGION:ACCOUNT:stream/NAME or arn:aws:dynamodb:REGION:ACCOUNT:table/NAME/stream/LABEL, with an "
        "account of 12 digits"
    )
    return ValueKind(read, allowed, form=Form(rf"{without_names(_ARN)}|{ARN_OF_TABLE}"))


def file() -> ValueKind[str]:
    def read(text: str) -> str:
        word = trimmed(text)
        if not word or "\0" in word:
            raise InvalidValue("not a path")
        return word

    return ValueKind(read, "a path", form=Form(SOMETHING))


def command() -> ValueKind[tuple[str, ...]]:
    """Splits at spaces only (KCL: MultiLangRecordProcessorFactory)."""

    def read(text: str) -> tuple[str, ...]:
        words = tuple(word for word in text.split(" ") if word)
        if not words:
            raise InvalidValue("empty; name the program that speaks the protocol")
        if any("\0" in word or not _has_bytes(word) for word in words):
            raise InvalidValue("a character that cannot be used in a command line")
        return words

    allowed = "a program and its arguments, separated by spaces; no quotes, no shell"
    return ValueKind(read, allowed, form=Form(r"[^ ][\s\S]*"))


def _has_bytes(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


MILLISECONDS: Final = whole_number(1, LONG_MAX, "milliseconds")
MILLISECONDS_OR_NONE: Final = whole_number(0, LONG_MAX, "milliseconds")


@dataclass(frozen=True, slots=True)
class Key:
    """`target` is a dotted path in `Settings`; in a declaration, below its field.

    Args:
        meaning: for the reference; empty: the docstring of the field.
        aliases: the last one in the file counts.
        default: for the reference, if `Settings` does not show it.
        blank_is_absent: empty is like no line, as in Java.
        extension: unknown to Java.
    """

    name: str
    kind: ValueKind[object]
    target: str = ""
    meaning: str = ""
    aliases: tuple[str, ...] = ()
    default: str | None = None
    required: bool = False
    blank_is_absent: bool = False
    extension: bool = False


def keys(*declared: Key) -> Mapping[str, object]:
    """For a field with several properties, or whose value has another type than its kind."""
    return {_KEYS: declared}


class KeyOptions(TypedDict, total=False):
    bean: str
    aliases: tuple[str, ...]
    shown: str | None
    blank_is_absent: bool


def java(
    name: str,
    kind: ValueKind[T],
    default: T,
    *,
    bean: str = "",
    aliases: tuple[str, ...] = (),
    shown: str | None = None,
    blank_is_absent: bool = False,
    extension: bool = False,
) -> T:
    """The docstring below the field is the property's meaning.

    `bean` is Java's nested configuration in which the property has the same name. `shown` is the default in the
    reference, if that is not `default`, or `none`.
    """
    nested = tuple(f"{bean}.{each}" for each in (name, *aliases) if bean)
    key = Key(
        name,
        kind,
        aliases=(*aliases, *nested),
        default=shown,
        blank_is_absent=blank_is_absent,
        extension=extension,
    )
    return field(default=default, metadata=keys(key))


def ours(name: str, kind: ValueKind[T], default: T, **options: Unpack[KeyOptions]) -> T:
    return java(name, kind, default, **options, extension=True)


def keys_of(settings: object, path: str = "") -> Iterator[Key]:
    if not is_dataclass(settings):
        return
    for each in fields(settings):
        value = getattr(settings, each.name)
        for key in each.metadata.get(_KEYS, ()):
            target = f"{path}{each.name}.{key.target}".rstrip(".")
            is_none = key.default is None and not key.required and value in (None, ())
            yield replace(key, target=target, default="none" if is_none else key.default)
        yield from keys_of(value, f"{path}{each.name}.")
