"""Every regular expression of the product takes time in proportion to the text, whatever the text.

One expression that takes the square or the cube of it is enough to hold up the event loop until leases expire.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Final

import pytest

from kcl_daemon.children.pipes import LineCutter
from kcl_daemon.config.kinds import InvalidValue
from kcl_daemon.config.load import _JSON
from kcl_daemon.config.properties import expanded, is_service_link
from kcl_daemon.records.batch_text import BatchText
from kcl_daemon.records.kpl import _parsed_in_c
from kcl_daemon.text import encodable, is_secret_name, masked, on_one_line, shown
from kcl_protocol.codec import decode_child_line, decode_log_line
from kcl_protocol.conversation import LineFramer

ROOT: Final = Path(__file__).parents[2]
FOLDERS: Final = {
    "daemon": ("daemon/kcl_daemon", "daemon/kcl_local", "daemon/kcl_prove"),
    "protocol": ("protocol/kcl_protocol",),
    "clients/python": ("clients/python/kcl_client",),
    "clients/landing": ("clients/landing/kcl_landing",),
    "clients/pyspark": ("clients/pyspark/kcl_spark",),
}
USES: Final = frozenset(
    {"compile", "match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer"}
)

# How each expression is applied to a text. A new one must be named here: a test compares.
NAMED: Final = {
    "kcl_daemon.capacity.figures:_CAPITAL": "findall",
    "kcl_daemon.capacity.figures:_SHARD": "fullmatch",
    "kcl_daemon.capacity.figures:_UNDERSCORE": "findall",
    "kcl_client.aws_lambda._events:_ARN": "fullmatch",
    "kcl_prove.fleet:_ADDRESS": "search",
    "kcl_prove.permissions:_NAMED": "search",
    "kcl_prove.permissions:_ROLE": "match",
    "kcl_prove.removal:_OURS": "match",
    "kcl_daemon.records.letters:_SEQUENCE_NUMBER": "fullmatch",
    "kcl_daemon.records.letters:_S3": "fullmatch",
    "kcl_daemon.records.batch_text:_NUMBERS": "measured by its function",
    "kcl_daemon.children.start:_FUNCTION": "fullmatch",
    "kcl_daemon.config.load:_JSON": "measured by its function",
    "kcl_daemon.config.load:_TEMPLATE": "search",
    "kcl_daemon.shards.lineage:_ORDINAL": "fullmatch",
    "kcl_daemon.config.dead_letters:_SCHEME": "fullmatch",
    "kcl_daemon.destinations.s3:_BUCKET": "fullmatch",
    "kcl_daemon.destinations.sns:_TOPIC": "fullmatch",
    "kcl_daemon.config.kinds:_AGE": "fullmatch",
    "kcl_daemon.aws.letters:_TOO_LARGE": "search",
    "kcl_local.dynamodb:_SIGNED_FOR": "search",
    "kcl_daemon.cli.leases.holds:_RATE": "fullmatch",
    "kcl_daemon.cli.iam_policy:_ARN": "match",
    "kcl_daemon.cli.check_view:_ENTRY": "match",
    "kcl_daemon.cli.run_function:_NOT_IN_NAMES": "findall",
    "kcl_daemon.cli.stream.place:_NAME": "fullmatch",
    "kcl_daemon.cli.stream.put:_RATE": "fullmatch",
    "kcl_daemon.config.schema:_LINK": "findall",
    "kcl_daemon.cli.status_view:_SHARD_PREFIX": "findall",
    "kcl_daemon.cli.status:_FIT_FOR_A_REQUEST": "fullmatch",
    "kcl_daemon.config.services:_EXTERNAL_ID": "fullmatch",
    "kcl_daemon.config.services:_PROFILE_NAME": "fullmatch",
    "kcl_daemon.config.services:_REGION": "fullmatch",
    "kcl_daemon.config.services:_ROLE_ARN": "fullmatch",
    "kcl_daemon.config.services:_SESSION_NAME": "fullmatch",
    # `expanded` gives it no more than what ends in a brace, and is measured itself.
    "kcl_daemon.config.properties:_REFERENCE": "measured by its function",
    "kcl_daemon.config.metrics_and_page:_TOKEN": "fullmatch",
    "kcl_daemon.destinations.sqs:_PATH": "fullmatch",
    "kcl_daemon.destinations.sqs:_REGION": "search",
    "kcl_daemon.config.children:STREAM_NAME": "fullmatch",
    "kcl_daemon.config.metrics_and_page:_ADDRESS": "fullmatch",
    "kcl_daemon.config.metrics_and_page:_DIMENSION": "fullmatch",
    "kcl_daemon.config.metrics_and_page:_SEPARATOR": "split",
    "kcl_daemon.config.balance:_PARENTS_FIRST": "fullmatch",
    "kcl_daemon.config.kinds:_ARN": "fullmatch",
    "kcl_daemon.config.kinds:_DURATION": "fullmatch",
    "kcl_daemon.config.kinds:_NUMBER": "fullmatch",
    "kcl_daemon.config.kinds:_WHOLE_NUMBER": "fullmatch",
    "kcl_daemon.config.properties:LINE_END": "findall",
    "kcl_daemon.config.properties:_ADDRESS": "fullmatch",
    "kcl_daemon.config.properties:_LINK_BY_NAME": "fullmatch",
    "kcl_daemon.config.properties:_LINK_WITH_ADDRESS": "fullmatch",
    "kcl_daemon.config.landing:_BUCKET": "fullmatch",
    "kcl_daemon.config.landing:_SCHEME": "fullmatch",
    "kcl_daemon.leases.lease:_ARN": "fullmatch",
    "kcl_daemon.leases.lease:_IDENTITY": "fullmatch",
    "kcl_daemon.leases.lease:_TABLE_ARN": "fullmatch",
    "kcl_daemon.leases.lease:_TABLE_NAME": "fullmatch",
    "kcl_daemon.shards.lineage:_CREATED": "fullmatch",
    "kcl_daemon.shards.lineage:_SEGMENT": "fullmatch",
    "kcl_daemon.metrics.metric:_ROW": "fullmatch",
    # Of bytes.
    "kcl_daemon.records.kpl:_KEY_HEAD": "measured by its function",
    "kcl_daemon.records.kpl:_RECORD_HEAD": "measured by its function",
    # Of bytes, of a fixed length.
    "kcl_landing.segments:_CHECKED": "fullmatch of 14 bytes",
    "kcl_daemon.text:_ACCESS_KEY_ID": "findall",
    "kcl_daemon.text:_ASSIGNED": "findall",
    "kcl_daemon.text:_ASSIGNED_HINT": "search",
    "kcl_daemon.text:_CUT_URL_USER": "findall",
    "kcl_daemon.text:_PARAMETER": "findall",
    "kcl_daemon.text:_SECRET_KEY": "fullmatch",
    "kcl_daemon.text:_SECRET_NAME": "search",
    "kcl_daemon.text:_SIGNATURE": "findall",
    "kcl_daemon.text:_URL_USER": "findall",
    "kcl_landing.keeping.read:_NAME": "fullmatch",
    "kcl_local.demo.text:_WORD": "findall",
    "kcl_local.kinesis.account:_STREAM_ARN": "fullmatch",
    "kcl_local.kinesis.arguments:_NAME": "fullmatch",
    "kcl_protocol.codec:_WHOLE_NUMBER": "fullmatch",
    "kcl_local.server:_TABLE": "fullmatch",
    "kcl_spark.alignment:_SEGMENT": "search",
    "kcl_spark.positions:_WATERMARK": "findall",
    "kcl_spark.session:_COLLECTOR": "search",
    "kcl_spark.session:_VERSION": "search",
}
# Written where they are used: the pattern, or the function's name where the pattern is put together there.
IN_PLACE: Final = {
    ("kcl_daemon.config.properties", r"[._-]"): "findall",
    ("kcl_daemon.config.properties", r"([a-z0-9])([A-Z])"): "findall",
    # Sees only what `_AGO` has let through, in which a unit follows each number.
    ("kcl_daemon.config.kinds", r"([\d.]+)([smhd])"): "behind another",
    ("kcl_daemon.cli.check_view", r"[\t\f]"): "findall",
    ("kcl_daemon.cli.run_function", r"\\(.)"): "findall",
    ("kcl_daemon.config.kinds", r"\?P<\w+>"): "findall",
    ("kcl_daemon.config.kinds", "[PTDHMS]"): "findall",
    ("kcl_daemon.state_folder", r"[^A-Za-z0-9._-]"): "findall",
    ("kcl_landing.log", r"[^A-Za-z0-9_-]"): "findall",
    ("kcl_local.demo.stream", r"[^ -~]"): "findall",
    ("kcl_prove.report", r"arn:aws[^\s\"',)]*"): "findall",
    ("kcl_prove.report", r"\b(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{12,}\b"): "findall",
    ("kcl_prove.report", r"(?<!shardId-)(?<![\d.])\d{12}(?![\d.])"): "findall",
    ("kcl_prove.report", r"(?<=://)(?!127\.0\.0\.1|localhost)[^\s/\"']+"): "findall",
    ("kcl_prove.report", r"[\x00-\x08\x0b-\x1f\x7f]"): "findall",
    ("kcl_daemon.cli.spark_submit", r"[^A-Za-z0-9_-]"): "findall",
    (
        "kcl_landing.keeping.names",
        (
            r"(?P<stream>[^/_][^/]*)/(?:_ends|dt=(?P<day>\d{4}-\d\d-\d\d)/hour=(?P<hour>\d\d))/"
            r"(?P<shard>[^/]+)-(?P<number>\d{12,})(?P<to>)\.(?P<format>parquet|arrow)"
        ),
    ): "fullmatch",
    ("kcl_spark.sinks", r"[^A-Za-z0-9]"): "findall",
    ("kcl_spark.sinks", r"\W"): "findall",
    ("kcl_spark.session", r"([0-9]+)([kmgt])b?"): "fullmatch",
}
# The parts that are not constants: what they come to.
PUT_TOGETHER: Final = {
    "kcl_daemon.cli.check_view": (r"app\.properties:(\d+): (?:(?:info|warning): )?",),
    "kcl_daemon.cli.run_function": (r"^kcl-daemon run:(\d+): ",),
    "kcl_landing.keeping.names": (
        r"_manifests/(?P<stream>[^/]+)/(?P<shard>[^/]+)\.first\.json",
        r"_manifests/(?P<stream>[^/]+)/(?P<shard>[^/]+)/(?P<number>\d{12,})\.json",
        r"_compaction/(?P<stream>[^/]+)/(?P<shard>[^/]+)/(?P<number>\d{12,})-(?P<to>\d+)\.json",
        r"_readers/(?P<shard>[^/]+)\.json",
        r"(?P<stream>[^/_][^/]*)/(?P<shard>[^/_][^/]*)/(?P<number>\d{12,})(?:-(?P<to>\d{12,}))?\.(?P<format>parquet|arrow)",
    ),
    "kcl_landing.manifests": (r"shardId\-000000000000\-(\d{12,})(?:-(\d{12,}))?\.parquet",),
    # Of bytes.
    "kcl_daemon.records.changes": (r'"id":\{"[SNB]":"[^"\\\n]*+"\}(?:\n"id":\{"[SNB]":"[^"\\\n]*+"\})*+',),
    "kcl_daemon.config.checks": (r"(?!AWS/)[A-Za-z0-9_.-]{3,255}",),
    "kcl_prove.report": (r"/home/me(?=/)", r"(?<![\w.-])host\-1(?![\w-])"),
}


def _refused(text: str) -> None:
    with contextlib.suppress(InvalidValue):
        expanded(text, {})


def _cut(text: str) -> None:
    cutter, data = LineCutter(), text.encode()
    for at in range(0, len(data), 4096):
        cutter.feed(data[at : at + 4096])


def _framed(text: str) -> None:
    framer, data = LineFramer(1024 * 1024), text.encode()
    for at in range(0, len(data), 4096):
        framer.feed(data[at : at + 4096])


# Functions that see foreign text and do more with it than one expression does.
FUNCTIONS: Final[dict[str, Callable[[str], object]]] = {
    "aggregates": lambda text: _parsed_in_c(text.encode()),
    "BatchText": lambda text: BatchText(
        b'"sequenceNumber":"7","approximateArrivalTimestamp":' + text.encode()
    ).find("7", 8),
    "a file of JSON": lambda text: _JSON.match(text.encode()),
    "masked": masked,
    "shown": shown,
    "on_one_line": on_one_line,
    "encodable": encodable,
    "is_secret_name": is_secret_name,
    "expanded": _refused,
    "is_service_link by name": lambda text: is_service_link(text, "1"),
    "is_service_link by address": lambda text: is_service_link("KCL_PORT", text),
    "decode_child_line": lambda text: decode_child_line(text.encode()),
    "decode_child_line in an object": lambda text: decode_child_line(b'{"action":"' + text.encode()),
    "decode_log_line": lambda text: decode_log_line(text.encode()),
    "LineCutter": _cut,
    "LineFramer": _framed,
}

# What is repeated, what stands before it and behind: each pair of parts that could match the same text is in here.
HEADS: Final = (
    "",
    "KCL",
    "KCL_",
    "P",
    "1",
    "arn:aws:kinesis:",
    "tcp://",
    "https://",
    'version "',
    "-XX:+Use",
    '{"a":',
)
PUMPS: Final = (
    *(
        "a",
        "A",
        "aB0",
        "0",
        "1.",
        ".",
        "-",
        "_",
        "__",
        ":",
        "/",
        " ",
        "\n",
        "\r",
        "\t",
        "=",
        "@",
        "&",
        "{",
        "}",
        "[",
    ),
    *(
        "secret",
        "secret-",
        "secret=",
        "secret = ",
        "secret   ",
        'secret"',
        "access_key",
        "passwd:",
        "admin_token_",
    ),
    *("credentials_", "session_token", "x-amz-signature", "token=", "?token=", ";api_key", "&access-token="),
    *(
        "://",
        "://a",
        "://a:",
        "AKIA",
        "AKIA0",
        "AKIAAAAAAAAAAAAAAAAA_",
        "AWS4-HMAC-SHA256 ",
        "AWS4-HMAC-SHA256\n",
    ),
    *(
        "${",
        "${a",
        "${a:-",
        "${a:-}",
        "${a}",
        "}${a:-",
        "_SERVICE_PORT",
        "_SERVICE_PORT_",
        "_PORT_1",
        "_PORT_1_TCP_",
    ),
    *(
        "sqs.",
        ".sqs.a",
        ".queue.",
        "amazonaws.",
        "GC",
        "GCa",
        "1D",
        "T1H",
        "1e",
        "é",
        "'a",
        '"a":',
        '{"a":',
        "\\",
    ),
    *("[1,", "\x00", "\u2028", "arn:", "kinesis:", "1:a:", "stream/"),
)
TAILS: Final = ("", "!", "\x00", "@")
SHORT_PUMPS: Final = ("a", "A", "0", "1:", "_PORT_1", "_SERVICE_PORT", ".", "-")
FAMILIES: Final = (*product(("",), PUMPS, TAILS), *product(HEADS[1:], SHORT_PUMPS, TAILS[:2]))

# Where the square of the time would take some hundred times as long as is worth measuring; longer ones in `make prove`.
LARGEST_CHARACTERS: Final = 4 * 1024
PROVED_CHARACTERS: Final = 16 * 1024
MOST_TIMES: Final = 2.5
# Below this chance is as large as the work; whatever takes no longer harms nobody.
WORTH_MEASURING_S: Final = 0.005
ATTEMPTS: Final = 5


def modules() -> Iterator[tuple[str, ast.Module]]:
    for folder, packages in FOLDERS.items():
        for package in packages:
            for path in (ROOT / package).rglob("*.py"):
                name = ".".join(path.relative_to(ROOT / folder).with_suffix("").parts)
                yield name.removesuffix(".__init__"), ast.parse(path.read_bytes())


def is_use(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name("re"), attr=attr)):
            return attr in USES
        case _:
            return False


def found() -> tuple[set[str], set[tuple[str, str]], set[str]]:
    """What the source has: names at the top of modules, patterns in place, modules that put some together."""
    named: set[str] = set()
    in_place: set[tuple[str, str]] = set()
    together: set[str] = set()
    for module, tree in modules():
        at_top: set[ast.AST] = set()
        for node in tree.body:
            match node:
                case ast.Assign(targets=[ast.Name(name)], value=value) if is_use(value):
                    at_top.add(value)
                    named.add(f"{module}:{name}")
                case ast.AnnAssign(target=ast.Name(name), value=ast.Call() as value) if is_use(value):
                    at_top.add(value)
                    named.add(f"{module}:{name}")
                case _:
                    pass
        for inner in ast.walk(tree):
            match inner:
                case ast.Call(args=[ast.Constant(str(pattern)), *_]) if is_use(inner) and inner not in at_top:
                    in_place.add((module, pattern))
                case ast.Call() if is_use(inner) and inner not in at_top:
                    together.add(module)
                case _:
                    pass
    return named, in_place, together


def names_of_kinds() -> set[str]:
    """Patterns that the configuration gives to `kinds.name`."""
    return {
        node.args[0].value
        for module, tree in modules()
        if module.startswith("kcl_daemon.config.")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "name"
        and isinstance(node.args[0], ast.Constant)
        and isinstance(node.args[0].value, str)
    }


def test_every_expression_of_the_product_is_measured() -> None:
    named, in_place, together = found()
    assert named == set(NAMED)
    assert in_place == set(IN_PLACE)
    assert together == {*PUT_TOGETHER, "kcl_daemon.config.kinds"}
    assert len(names_of_kinds()) > 10


def cases() -> Iterator[tuple[str, Callable[[str], object]]]:
    for where, use in NAMED.items():
        module, name = where.split(":")
        if use in USES:
            expression = getattr(importlib.import_module(module), name)
            assert isinstance(expression, re.Pattern)
            yield where, getattr(expression, use)
    for (module, pattern), use in IN_PLACE.items():
        if use in USES:
            yield f"{module} {pattern}", getattr(re.compile(pattern), use)
    for module, patterns in (*PUT_TOGETHER.items(), ("kcl_daemon.config.kinds", sorted(names_of_kinds()))):
        for pattern in patterns:
            yield f"{module} {pattern}", re.compile(pattern).fullmatch
    yield from FUNCTIONS.items()


def text_of(family: tuple[str, str, str], characters: int) -> str:
    head, pump, tail = family
    return head + pump * (characters // len(pump)) + tail


def seconds(apply: Callable[[str], object], text: str, runs: int) -> float:
    """The least CPU time of some runs: other programs do not count."""
    least = float("inf")
    for _ in range(runs):
        began = time.thread_time()
        apply(text)
        least = min(least, time.thread_time() - began)
    return least


def grows_too_fast(
    apply: Callable[[str], object], largest: int, family: tuple[str, str, str], attempts: int = ATTEMPTS
) -> str | None:
    """What was measured where doubling the text costs more than it should; None where all is well."""
    characters = 256
    # Slowly up: what takes the cube of the time would take minutes at the largest.
    while seconds(apply, text_of(family, characters), 1) <= WORTH_MEASURING_S:
        characters *= 2
        if characters > largest:
            return None
    said = ""
    for attempt in range(1, attempts + 1):
        half, whole = (
            seconds(apply, text_of(family, size), 2 * attempt) for size in (characters, 2 * characters)
        )
        if whole <= max(MOST_TIMES * half, WORTH_MEASURING_S):
            return None
        said = f"{family}: {characters} characters {half * 1000:.2f} ms, twice as many {whole * 1000:.2f} ms"
    return said


@pytest.mark.parametrize(
    "largest", [LARGEST_CHARACTERS, pytest.param(PROVED_CHARACTERS, marks=pytest.mark.prove)]
)
@pytest.mark.parametrize("apply", [pytest.param(apply, id=name) for name, apply in cases()])
def test_twice_the_text_takes_about_twice_the_time(apply: Callable[[str], object], largest: int) -> None:
    assert next(filter(None, map(partial(grows_too_fast, apply, largest), FAMILIES)), None) is None


def test_an_expression_with_quadratic_time_is_found() -> None:
    squared = re.compile(r"(\b[\w.-]*(?:secret)[\w.-]*=)").findall
    families = [family for family in FAMILIES if family[1] == "secret-"]
    assert any(grows_too_fast(squared, LARGEST_CHARACTERS, family, attempts=1) for family in families)
