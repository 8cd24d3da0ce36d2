"""Tries a write permission with a write whose condition cannot hold, and lists the calls that it cannot try."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path, PurePath
from typing import Final, NoReturn, Protocol, TypeVar

import click
from anyio import to_thread

from kcl_daemon.app import streams_of
from kcl_daemon.aws.build import build_schemas, build_tables, open_kinesis_client
from kcl_daemon.aws.session import Clients, caller_identity, open_clients, refused_here, unknown_regions
from kcl_daemon.cli.application import open_existing
from kcl_daemon.cli.check_view import Ink, Source, about_aws, concluded, explained, table
from kcl_daemon.cli.common import (
    EXIT_CONFIGURATION,
    EXIT_FAILURE,
    advice_for,
    as_json_option,
    chosen_file,
    describe,
    json_text,
    load_file,
    run,
    with_file,
)
from kcl_daemon.cli.landing_check import landing_finding
from kcl_daemon.cli.run import check_program, with_doubtful_starts
from kcl_daemon.config import schema
from kcl_daemon.config.dead_letters import Destination
from kcl_daemon.config.load import EffectiveProperty, Loaded, as_properties, effective, value_text
from kcl_daemon.config.metrics_and_page import MetricsLevel
from kcl_daemon.config.properties import Notice
from kcl_daemon.config.retrieval import RetrievalMode
from kcl_daemon.config.settings import Settings
from kcl_daemon.errors import AccessDenied, AwsError, ConfigurationError, InvalidRequest, SchemaNotFound
from kcl_daemon.fleet.many_streams import MultiStreamTracker
from kcl_daemon.fleet.streams import ComparedLeases, OwnStreamCheck, leases_of, require_same_stream_mode
from kcl_daemon.leases.lease import Lease
from kcl_daemon.leases.row import Equals, RowUpdate
from kcl_daemon.ports import (
    ConsumerName,
    ConsumerStatus,
    IteratorKind,
    Kinesis,
    ReadFrom,
    Schemas,
    StreamConsumer,
    StreamRef,
    Table,
    Tables,
)
from kcl_daemon.shards.lineage import Shard, finished_but_open
from kcl_daemon.sources import open_sources
from kcl_daemon.system import SystemClock
from kcl_daemon.telemetry.logs import build_log
from kcl_daemon.text import NOT_TRIED, encodable, masked, numbered, on_one_line, shown
from kcl_daemon.transport.event_stream import HttpFanOut

_Result = TypeVar("_Result")

Finding = tuple[bool, str]
_NAMED_MOST: Final = 5
_ANOTHER: Final = (
    "does applicationName belong to an application that reads another stream? Then use a new one. If "
    "the stream was recreated, start over with `kcl-daemon leases reset`"
)
_NO_ROW: Final = "kcl-daemon check"
_NO_SCHEMA: Final = "00000000-0000-0000-0000-000000000000"
_NEVER: Final = (Equals("kcl-daemon-check", "never"),)
_SENTENCES: Final = {
    "unknown_property": "is not a known property and has no effect{meant}",
    "property_has_no_effect": "has no effect: {why}",
    "property_given_twice": "is given again and this one is used; line {ignored_line} ({ignored_key}) is not",
    "property_overridden": "overrides {ignored_key} in line {ignored_line}",
    "property_raised": "= {given} is too low; {used} is used: {why}",
    "property_lowered": "= {given} is too high; {used} is used: {why}",
    "property_contradicts_stream_arn": "= {given} is not the name in streamArn, {arn}; {used} is used",
    "stream_arn_counts_by_name": "= {arn}: {why}",
    "property_honoured_unlike_java": "= {value} is honoured; the Java daemon uses {java_uses}",
    "pipeline_reads_the_landing": "is not started here: {advice}",
    "dead_letters_may_not_fit": "takes letters of up to {limit}, records of {largest_record}; {advice}",
    "template_not_rendered": "looks like a template and is used as plain text; {advice}",
    "time_unit_doubtful": "= {value} means {means}; {advice}",
    "first_position_doubtful": "starts at {starts_at}, {advice}",
    "credentials_provider_doubtful": "{provider}: {advice}",
    "lanes_limited": "= {lanes} leaves room for the children of {shards} of the shards in {limit}; {advice}",
    "credentials_from_sdk_chain": "credentials come from the default chain of the AWS SDK ({chain})",
}
_PRICE: Final = "retrievalMode is FANOUT by default, for which Amazon charges by shard, hour and GB; POLLING costs nothing more"
_SCRIPTS: Final = frozenset(
    {".py", ".js", ".mjs", ".cjs", ".ts", ".rb", ".pl", ".sh", ".php", ".lua", ".r", ".jar", ".dll"}
)
_IN_PLACE_OF_A_SCRIPT: Final = frozenset({"-m", "-c", "-e", "--eval"})
_EPILOG: Final = """\b
Exit codes:
  0  the daemon would start, as far as checked
  1  with --with-aws: something in AWS is missing or not permitted
  2  the file or the environment has errors; with --strict also for warnings
"""


def not_tried(what: str, why: str) -> Finding:
    return True, masked(on_one_line(f"{what}{NOT_TRIED}{why}"))


async def try_check(
    findings: list[Finding], what: str, attempt: Callable[[], Awaitable[_Result]]
) -> _Result | None:
    try:
        return await attempt()
    except (AwsError, ConfigurationError) as error:
        findings.append((False, masked(on_one_line(f"{what}: {describe(error)}; {advice_for(error)}"))))
        return None


class Consumers(Protocol):
    async def describe_consumer(self, consumer: ConsumerName | str) -> StreamConsumer | None: ...


async def stream_findings(
    settings: Settings, stream: StreamRef, kinesis: Kinesis, consumers: Consumers
) -> list[Finding]:
    findings: list[Finding] = []
    summary = await try_check(findings, f"stream {stream.name}", lambda: kinesis.describe_stream(stream))
    if summary is None:
        return findings
    listing = stream.source.lists
    asked = partial(stream.source.findings, settings, summary)
    told = await to_thread.run_sync(lambda: list(asked()), abandon_on_cancel=True)
    findings += ((good, masked(on_one_line(text))) for good, text in told)
    shards = await try_check(findings, listing, lambda: kinesis.list_shards(stream))
    if shards:
        findings.append((True, f"{listing}: {len(shards)} shards"))
    fan_out = settings.retrieval.mode is RetrievalMode.FANOUT
    if fan_out:
        findings += await _fan_out(settings, summary.arn, consumers)
    if shards and (not fan_out or settings.fan_out.fallback_to_polling):
        findings += await _polling(stream, shards[-1], kinesis)
    return findings


async def lease_findings(settings: Settings, kinesis: Kinesis, separate: Tables) -> list[Finding]:
    clock = SystemClock()
    log = build_log(level="error", form="console", stream=sys.stderr, clock=clock)
    try:
        tables = (await open_existing(separate, settings)).tables
        await require_same_stream_mode(tables.leases, many=settings.reads_many)
        leases = await leases_of(tables.leases)
        streams = streams_of(settings, kinesis, clock, log, table=tables.leases)
        if isinstance(streams, MultiStreamTracker):
            await streams.prepare()
            return [(True, f"leases: {len(leases)}")] if leases else []
        own = OwnStreamCheck(tables, streams, settings.application_name)
        await own.is_known()
        return _compared(leases, await own.compared(leases)) if leases else []
    except ConfigurationError as error:
        return [(False, masked(on_one_line(f"leases: {error}")))]
    except AwsError:
        return []


def _compared(leases: Sequence[Lease], compared: ComparedLeases) -> list[Finding]:
    why = compared.why or next(iter(compared.refused), None)
    if why is not None:
        return [(False, masked(on_one_line(f"leases: {why}; {_ANOTHER}")))]
    listed = {shard.shard_id for shard in compared.shards}
    here = [lease for lease in leases if not lease.is_finished and lease.shard_id in listed]
    reported = (
        f"leases: {len(here)} unfinished for {len(listed)} listed shards; {compared.tried} checkpoints tried"
    )
    if not (stuck := finished_but_open(leases, compared.shards)):
        return [(True, reported)]
    names = ", ".join(lease.shard_id for lease in stuck[:_NAMED_MOST])
    nobody = f"leases: {len(stuck)} open shards are finished in the table, so no worker reads them: {names}"
    return [(True, reported), (False, f"{nobody}; read them again with `kcl-daemon leases reset --shard`")]


async def _polling(stream: StreamRef, shard: Shard, kinesis: Kinesis) -> list[Finding]:
    findings: list[Finding] = []
    shard_id, newest = shard.shard_id, ReadFrom(IteratorKind.LATEST)
    iterator = await try_check(
        findings, "GetShardIterator", lambda: kinesis.get_shard_iterator(stream, shard_id, newest)
    )
    if iterator is not None:
        read = partial(kinesis.get_records, stream, shard_id, iterator, 1)
        if await try_check(findings, "GetRecords", read) is not None:
            findings.append((True, "GetRecords: allowed"))
    return findings


async def _fan_out(settings: Settings, stream_arn: str, consumers: Consumers) -> list[Finding]:
    findings: list[Finding] = []
    given = settings.fan_out.consumer_arn
    name = settings.fan_out.consumer_name or settings.application_name
    asked = ConsumerName(stream_arn, name) if given is None else given
    found = await try_check(findings, f"consumer {given or name}", lambda: consumers.describe_consumer(asked))
    if not findings:
        findings += _consumer(found, given or name, registers=given is None)
    return [*findings, not_tried("SubscribeToShard", "it would interrupt the worker that reads the shard")]


def _consumer(found: StreamConsumer | None, called: str, *, registers: bool) -> list[Finding]:
    is_there = found is not None and found.status is not ConsumerStatus.DELETING
    reported = "does not exist" if found is None else found.status.value
    if is_there:
        return [(True, f"consumer {called}: {reported}")]
    if not registers:
        return [(False, f"consumer {called}: {reported}; correct or remove fanoutConfig.consumerArn")]
    return [
        (True, f"consumer {called}: {reported}; the daemon registers it"),
        not_tried("RegisterStreamConsumer", "it would register a consumer, which costs money"),
    ]


async def check_services(settings: Settings) -> list[Finding]:
    """Raises what prevents asking AWS at all."""
    async with (
        open_clients(
            settings.endpoints, glue=settings.schemas.are_resolved, changes=settings.reads_changes
        ) as clients,
        open_kinesis_client(clients, SystemClock()) as client,
        open_sources(settings, clients, client, SystemClock()) as kinesis,
    ):
        consumers = HttpFanOut(client)
        findings = await _identity(settings, clients)
        if settings.streams.name_filter is not None:
            listed = await try_check(findings, "ListStreams", kinesis.list_streams)
            findings += [] if listed is None else [(True, f"ListStreams: {len(listed)} streams")]
        for stream in settings.stream_refs:
            findings += await stream_findings(settings, stream, kinesis, consumers)
        tables = build_tables(settings, clients, SystemClock())
        findings += await table_findings(tables.leases, indexed=True)
        findings += await lease_findings(settings, kinesis, tables)
        for table in (tables.worker_metrics, tables.coordinator):
            findings += await table_findings(table, indexed=False)
        schemas = build_schemas(clients)
        if schemas is not None:
            findings += await _registry(schemas)
        return [*findings, *_figures(settings), *(await _dead_letters(settings)), *(await _landing(settings))]


async def _identity(settings: Settings, clients: Clients) -> list[Finding]:
    places = [each.meta.endpoint_url for each in (clients.kinesis, clients.dynamodb)]
    where = f"in {clients.kinesis.meta.region_name} at {' and '.join(places)}"
    try:
        arn = await to_thread.run_sync(caller_identity, settings.endpoints, abandon_on_cancel=True)
    except AwsError as error:
        return [(True, f"checked {where}"), not_tried("identity", f"STS did not answer: {describe(error)}")]
    return [(True, f"checked as {arn} {where}")]


async def table_findings(table: Table, *, indexed: bool) -> list[Finding]:
    findings: list[Finding] = []
    state = await try_check(findings, f"table {table.name}", table.describe)
    if state is None:
        missing = (
            f"table {table.name}: does not exist; the daemon creates it if needed; CreateTable and calls on "
            "its rows"
        )
        return findings or [not_tried(missing, "it would create a table")]
    findings.append((True, f"table {table.name}: exists"))
    row = {table.key_attribute: _NO_ROW}
    tries: list[tuple[str, Callable[[], Awaitable[object]]]] = [
        ("GetItem", lambda: table.get(_NO_ROW)),
        ("PutItem", lambda: table.put(row, _NEVER)),
        ("UpdateItem", lambda: table.update(RowUpdate(_NO_ROW, put={"checked": 1}, require=_NEVER))),
        ("DeleteItem", lambda: table.delete(_NO_ROW, _NEVER)),
        ("Scan", table.scan),
    ]
    if indexed:
        tries.append(("Query of the index by owner", lambda: table.owned_keys(_NO_ROW)))
    refused = len(findings)
    for name, attempt in tries:
        await try_check(findings, f"table {table.name}: {name}", attempt)
    if len(findings) == refused:
        findings.append((True, f"table {table.name}: rows can be read and written"))
    return findings


async def _registry(schemas: Schemas) -> list[Finding]:
    findings: list[Finding] = []

    async def ask() -> None:
        with suppress(SchemaNotFound):
            await schemas.schema(_NO_SCHEMA)

    await try_check(findings, "schema registry", ask)
    return findings or [(True, "schema registry: GetSchemaVersion is allowed")]


async def _dead_letters(settings: Settings) -> list[Finding]:
    """A trial would store a letter."""
    places = (settings.failures.dead_letters, settings.failures.dead_letter_overflow)
    return [found for each in places if each is not None for found in await _place_of_letters(settings, each)]


async def _place_of_letters(settings: Settings, place: Destination) -> list[Finding]:
    what, why = f"dead letters: {place}", "it would store a letter"
    findings: list[Finding] = []
    try:
        most = await to_thread.run_sync(place.largest_letter, settings.endpoints, abandon_on_cancel=True)
    except AccessDenied as error:
        why = f"{why}, and we may not ask for it: {describe(error)}"
    except (AwsError, ConfigurationError) as error:
        absent = isinstance(error, InvalidRequest)
        advice = "create it, or correct the property" if absent else advice_for(error)
        return [(False, masked(on_one_line(f"{what}: {describe(error)}; {advice}")))]
    else:
        if most is None:
            return []
        limit = "letters of any size" if most == inf else f"letters of up to {most} bytes"
        findings.append((True, f"{what}: is there; takes {limit}"))
    return [*findings, not_tried(f"{what}: storing a letter", why)]


async def _landing(settings: Settings) -> list[Finding]:
    if settings.landing.uri is None:
        return []
    finding = await to_thread.run_sync(landing_finding, settings, abandon_on_cancel=True)
    return [finding, not_tried(f"landing {settings.landing.uri}: creating an object", "it would write one")]


def _figures(settings: Settings) -> list[Finding]:
    """A trial would write a metric, which cannot be removed."""
    if settings.metrics.level is MetricsLevel.NONE:
        return []
    namespace = settings.metrics.namespace or settings.application_name
    return [not_tried(f"CloudWatch {namespace}: PutMetricData", "it would write a metric")]


def verdict_of(*, errors: int = 0, warnings: int = 0, not_tried: int = 0, asked_aws: bool = False) -> str:
    counts = [numbered(count, noun) for count, noun in ((errors, "error"), (warnings, "warning")) if count]
    parts = [] if errors else ["OK: would start"]
    parts += [", ".join(counts)] if counts else []
    if not asked_aws and not errors:
        parts.append("AWS was not checked (use --with-aws)")
    if not_tried:
        parts.append(f"{numbered(not_tried, 'thing')} not tried")
    return "; ".join(parts)


def count_findings(findings: Sequence[Finding]) -> tuple[int, int]:
    errors = sum(not good for good, _ in findings)
    return errors, sum(good and NOT_TRIED in text for good, text in findings)


def sentence(notice: Notice, file: str) -> str:
    where = f"environment, {notice.variable}" if notice.variable else f"{file}:{notice.line}"
    facts = {name: value_text(value) for name, value in notice.facts.items()}
    nearest = facts.get("nearest")
    facts["meant"] = "" if nearest is None else f"; did you mean {nearest}?"
    form = _SENTENCES.get(notice.event)
    if form is None:
        said = f"{notice.event} {' '.join(f'{name}={value}' for name, value in notice.facts.items())}"
    else:
        said = form.format_map(facts)
    return on_one_line(f"{where}: {notice.level}: {notice.key} {said}").rstrip()


def missing_script(command: Sequence[str], exists: Callable[[str], bool]) -> str | None:
    for argument in command[1:]:
        if argument in _IN_PLACE_OF_A_SCRIPT:
            return None
        if PurePath(argument).suffix.lower() in _SCRIPTS and not argument.startswith("-"):
            return None if exists(argument) else argument
    return None


def about_script(script: str, folder: str) -> str:
    where = "is not there" if script.startswith("/") else f"is not in {folder}, where children start"
    return on_one_line(f"executableName: warning: {shown(script)} {where}")


def about_region(name: str, nearest: str | None) -> str:
    meant = "" if nearest is None else f"; did you mean {nearest}?"
    return on_one_line(f"region: warning: the installed AWS SDK does not know the region {name}{meant}")


@click.command("check", epilog=_EPILOG)
@with_file
@click.option(
    "--with-aws",
    is_flag=True,
    help="Also check stream, tables and permissions in AWS. Writes nothing; what it cannot test without "
    "writing is marked NOT TRIED.",
)
@click.option("--all", "everything", is_flag=True, help="Show all settings, including defaults.")
@click.option("--changed", is_flag=True, hidden=True)
@click.option("--strict", is_flag=True, help="Exit with 2 for warnings too.")
@click.option(
    "--schema",
    "as_schema",
    is_flag=True,
    help="Print a JSON Schema of all properties instead, for editors; needs no FILE.",
)
@click.option(
    "--resolved",
    is_flag=True,
    help="Print a properties file instead, with variables and overrides resolved. Secrets are NOT masked.",
)
@as_json_option
def check(
    *,
    file: Path | None,
    properties_file: Path | None,
    with_aws: bool,
    everything: bool,
    changed: bool,
    strict: bool,
    as_schema: bool,
    resolved: bool,
    as_json: bool,
) -> None:
    """Read a properties file and the KCL_... variables as the daemon does; print each setting and its source.

    The last line is the result. Uses the network only with --with-aws.
    """
    if as_schema:
        click.echo(json_text(schema.document()))
        return
    path = chosen_file(file, properties_file)
    try:
        loaded = with_doubtful_starts(load_file(path), SystemClock().wall_ms() / 1000)
    except ConfigurationError as error:
        _refuse(path, str(error).splitlines(), as_json=as_json)
    if resolved:
        click.echo(as_properties(loaded), nl=False)
        return
    found = _examined(loaded, with_aws=with_aws)
    only_changed = changed if as_json else not everything
    shown = [each for each in effective(found.loaded) if not (only_changed and each.is_default)]
    errors, untried = count_findings(found.findings or ())
    errors += len(found.problems)
    warnings = len(found.warnings)
    verdict = verdict_of(errors=errors, warnings=warnings, not_tried=untried, asked_aws=with_aws)
    if as_json:
        counts = {"errors": errors, "warnings": warnings, "not_tried": untried, "line": verdict}
        click.echo(json_text(_document(found, shown, counts)))
    else:
        ink = Ink.of(sys.stdout)
        source = Source.of(path, loaded.file)
        notices = [line for each in found.infos for line in explained(each, "info", source, ink)]
        notices += [line for each in found.warnings for line in explained(each, "warning", source, ink)]
        _report(table(shown, ink), notices, about_aws(found.findings or (), ink))
        _conclude(found.problems, source, verdict, errors=errors, warnings=warnings)
    if found.problems or (strict and warnings and not errors):
        sys.exit(EXIT_CONFIGURATION)
    if errors:
        sys.exit(EXIT_FAILURE)


@dataclass(frozen=True, slots=True)
class _Examined:
    loaded: Loaded
    problems: list[str]
    infos: list[str]
    warnings: list[str]
    findings: list[Finding] | None


def _examined(loaded: Loaded, *, with_aws: bool) -> _Examined:
    problems: list[str] = []
    try:
        loaded = check_program(loaded)
    except ConfigurationError as error:
        problems += str(error).splitlines()
    endpoints, warnings = loaded.settings.endpoints, _warnings(loaded)
    lacking = refused_here(endpoints)
    if lacking is None:
        warnings += [about_region(name, nearest) for name, nearest in unknown_regions(endpoints)]
    else:
        problems.append(on_one_line(f"{loaded.file}: {lacking}"))
    asks = with_aws and lacking is None
    findings = run(lambda: check_services(loaded.settings)) if asks else None
    return _Examined(loaded, problems, _infos(loaded), warnings, findings)


def _refuse(path: Path, problems: list[str], *, as_json: bool) -> NoReturn:
    if as_json:
        click.echo(json_text({"problems": problems}))
    else:
        source = Source.of(path, on_one_line(encodable(str(path))))
        _conclude(problems, source, verdict_of(errors=len(problems)), errors=len(problems), warnings=0)
    sys.exit(EXIT_CONFIGURATION)


def _conclude(problems: Sequence[str], source: Source, verdict: str, *, errors: int, warnings: int) -> None:
    ink = Ink.of(sys.stderr if problems else sys.stdout)
    for line in (line for each in problems for line in explained(each, "error", source, ink)):
        click.echo(line, err=True)
    click.echo(concluded(verdict, errors=errors, warnings=warnings, ink=ink), err=bool(problems))


def _report(*parts: Iterable[str]) -> None:
    for lines in map(list, parts):
        for line in (*lines, "") if lines else ():
            click.echo(line)


def _infos(loaded: Loaded) -> list[str]:
    reported = [sentence(each, loaded.file) for each in loaded.warnings if each.level == "info"]
    mode = next(each for each in effective(loaded) if each.key == "retrievalMode")
    if (mode.value, mode.origin) == (RetrievalMode.FANOUT.value, "default"):
        reported.append(f"{loaded.file}: info: {_PRICE}")
    return reported


def _warnings(loaded: Loaded) -> list[str]:
    reported = [sentence(each, loaded.file) for each in loaded.warnings if each.level == "warning"]
    script = missing_script(loaded.settings.child.command, lambda name: Path(name).exists())
    if script is not None:
        reported.append(about_script(script, str(Path.cwd())))
    return reported


def _document(
    found: _Examined, shown: list[EffectiveProperty], verdict: Mapping[str, object]
) -> dict[str, object]:
    loaded, findings = found.loaded, found.findings
    notices = [
        {"event": each.event, "level": each.level, **each.fields(loaded.file)} for each in loaded.warnings
    ]
    return {
        "problems": found.problems,
        "settings": {each.key: {"value": each.value, "origin": each.origin} for each in shown},
        "notices": notices,
        "messages": [*found.infos, *found.warnings],
        "verdict": verdict,
        **({} if findings is None else {"aws": [{"good": good, "finding": text} for good, text in findings]}),
    }
