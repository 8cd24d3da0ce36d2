"""The only module of the daemon that imports the landing log, and with it Arrow."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Final

import click
import msgspec

from kcl_daemon.cli.common import (
    EXIT_CONFIGURATION,
    EXIT_FAILURE,
    aligned,
    as_json_option,
    ask,
    command_name,
    json_text,
    load_file,
    refuse,
    yes_option,
)
from kcl_daemon.config.kinds import age_s
from kcl_daemon.errors import ConfigurationError
from kcl_daemon.system import SystemClock
from kcl_daemon.text import NONE, about, counted, masked, on_one_line, size
from kcl_landing.control import Refused
from kcl_landing.keeping.chain import Problem
from kcl_landing.keeping.compact import Compactor
from kcl_landing.keeping.complete import expire_marks, statements_of
from kcl_landing.keeping.expire import Expirer, rules_of
from kcl_landing.keeping.names import COMPACTION, sorted_out
from kcl_landing.keeping.read import Unreadable, forget, readers_of, survey
from kcl_landing.keeping.status import LogStatus, ShardStatus
from kcl_landing.keeping.status import status as status_of
from kcl_landing.keeping.verify import Verifier
from kcl_landing.log import MANIFESTS, LogInfo
from kcl_landing.manifests import known_log
from kcl_landing.store import LogStore, StoredObject, StoreTrouble, open_store
from kcl_landing.trouble import ADVICE

EPILOG: Final = """\b
SOURCE is a properties file with landing, or the address itself: a folder, s3://BUCKET/PREFIX, hdfs://...

\b
Exit codes:
  0  done
  1  the store did not answer or refused, or (verify) the log is damaged
  2  wrong command line, properties file or environment, or no landing log there
"""
_MOST_PROBLEMS: Final = 1000
_CLOCK: Final = SystemClock()


@dataclass(frozen=True, slots=True)
class ChosenLog:
    store: LogStore
    info: LogInfo
    stream: str | None
    shard: str | None
    as_json: bool

    def tell(self, line: object) -> None:
        click.echo(masked(on_one_line(str(line))), err=self.as_json)

    def end(self, document: object, *lines: str) -> None:
        if self.as_json:
            click.echo(json_text(document))
        else:
            click.echo("\n".join(on_one_line(each) for each in lines))


def _on_log(command: Callable[..., object]) -> Callable[..., object]:
    @wraps(command)
    def called(
        *,
        source: str,
        stream: str | None,
        shard: str | None,
        endpoint: str | None,
        as_json: bool,
        **others: object,
    ) -> object:
        with _said():
            store = _open(source, endpoint)
            return command(ChosenLog(store, known_log(store), stream, shard, as_json), **others)

    options = (
        click.argument("source"),
        click.option("--stream", metavar="NAME", help="Only this stream."),
        click.option("--shard", metavar="ID", help="Only this shard."),
        click.option("--endpoint", metavar="URL", help="Of an S3 store that is not AWS."),
        as_json_option,
    )
    wrapped: Callable[..., object] = called
    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped


def _open(source: str, endpoint: str | None) -> LogStore:
    if "://" in source or source.startswith("file:") or Path(source).is_dir():
        return open_store(source, endpoint=endpoint or "")
    try:
        settings = load_file(Path(source)).settings
    except ConfigurationError as error:
        refuse(error)
    landing = settings.landing
    if landing.uri is None:
        raise click.UsageError(f"{source} has no landing; give a folder or a URI")
    region = settings.endpoints.region_name or ""
    endpoint = endpoint or landing.endpoint or ""
    return open_store(landing.uri, endpoint=endpoint, region=region, encryption=landing.encryption)


@contextmanager
def _said() -> Generator[None]:
    try:
        yield
    except (Refused, Unreadable) as error:
        _fail(str(error), EXIT_CONFIGURATION if isinstance(error, Refused) else EXIT_FAILURE)
    except StoreTrouble as trouble:
        _fail(f"{trouble}; {ADVICE[trouble.cause]}", EXIT_FAILURE)


def _fail(message: str, code: int) -> None:
    click.echo(masked(on_one_line(f"{command_name()}: {message}")), err=True)
    sys.exit(code)


def _age_ms(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    seconds = 0.0 if text == "0" else age_s(text)
    if seconds is None:
        raise click.BadParameter(f"{text!r} is not an age such as 90s, 1h30m or 7d")
    return round(seconds * 1000)


def _jobs(most: int) -> Callable[[Callable[..., object]], Callable[..., object]]:
    return click.option(
        "--jobs",
        metavar="N",
        type=click.IntRange(1, 256),
        default=min(most, os.cpu_count() or 1),
        show_default=True,
        help="At once.",
    )


_dry_run: Final = click.option("--dry-run", is_flag=True, help="Say what would be done, and change nothing.")


@click.group("landing", help="Show, verify, compact and expire a landing log.")
def landing() -> None:
    """The group."""


@landing.command("status", short_help="Show what the log holds, and how far its readers are.", epilog=EPILOG)
@_on_log
def status(log: ChosenLog) -> None:
    """Show segments, records and bytes of each shard, how new they are, and how far behind registered readers are.

    COMPLETE is how long ago the time is before which all that arrived is in the log. Reads manifests, marks and rosters only.
    """
    found = status_of(log.store, log.info, log.stream, log.shard)
    now_ms = _CLOCK.wall_ms()
    log.end(_status_json(found, now_ms), *_status_lines(found, now_ms))


def _status_lines(found: LogStatus, now_ms: int) -> Iterator[str]:
    yield _sentence(found, now_ms)
    if found.holder is not None:
        yield _horizon(found, found.holder, now_ms)
    sizes = ("SHARD", "SEGMENTS", "FIRST", "LAST", "RECORDS", "BYTES")
    headings = (*sizes, "NEWEST", "BEHIND", "COMPLETE", "STATE")
    if found.shards:
        rows = [_row(each, now_ms) for each in found.shards]
        yield from aligned(headings, rows, {1, 2, 3, 4, 5})
    yield from found.trouble
    for reader in found.readers:
        unread, said = found.unread(reader.name), f"its note is {_age(reader.at_ms, now_ms)} old"
        waits = f", the oldest arrived {_age(unread.oldest_ms, now_ms)} ago" if unread.oldest_ms else ""
        left = f"{counted(unread.segments, 'segment')}, {counted(unread.rows, 'record')}, {size(unread.size_bytes)}"
        yield f"reader {reader.name}: {left} to read{waits}; {said}"
        for each in found.shards:
            if gone := each.readers[reader.name].gone:
                yield (
                    f"reader {reader.name} is behind retention: {counted(gone, 'segment')} of {each.stream}/{each.shard} "
                    f"expired before it had them, up to {each.expired.last}"
                )


def _sentence(found: LogStatus, now_ms: int) -> str:
    shards, newest_ms = found.shards, max((each.newest_ms for each in found.shards), default=0)
    segments = counted(sum(each.segments for each in shards), "segment")
    rows, held = sum(each.rows for each in shards), size(sum(each.size_bytes for each in shards))
    ended = sum(each.children is not None for each in shards)
    new = f"; the newest record arrived {_age(newest_ms, now_ms)} ago" if newest_ms else ""
    has_ended = f" ({ended} ended)" if ended else ""
    return (
        f"application {found.info.application}, layout {found.info.layout}: {counted(len(shards), 'shard')}{has_ended}, "
        f"{segments}, {counted(rows, 'record')}, {held}{new}; {counted(len(found.readers), 'reader')}"
    )


def _horizon(found: LogStatus, holder: ShardStatus, now_ms: int) -> str:
    until = f"{_age(holder.complete_ms, now_ms)} ago" if holder.complete_ms else "no time yet"
    who = "no mark says more"
    if holder.worker:
        who = f"the mark of {holder.worker} is {_age(found.hosts[holder.worker], now_ms)} old"
    return f"complete until {until}: {holder.stream}/{holder.shard} holds it; {who}"


def _row(each: ShardStatus, now_ms: int) -> tuple[str, ...]:
    state = f"ended: {', '.join(each.children) or 'no children'}" if each.children is not None else "open"
    return (
        f"{each.stream}/{each.shard}",
        str(each.segments),
        NONE if each.first < 0 else str(each.first),
        NONE if each.number < 0 else str(each.number),
        str(each.rows),
        size(each.size_bytes),
        _age(each.newest_ms, now_ms),
        NONE if each.behind_ms is None else about(each.behind_ms / 1000),
        _age(each.complete_ms, now_ms),
        each.trouble or state,
    )


def _age(at_ms: int, now_ms: int) -> str:
    return about((now_ms - at_ms) / 1000) if at_ms else NONE


def _status_json(found: LogStatus, now_ms: int) -> dict[str, object]:
    shards = [
        {**msgspec.to_builtins(each), "expired": msgspec.structs.asdict(each.expired)}
        for each in found.shards
    ]
    readers = [
        {**msgspec.structs.asdict(each), "unread": msgspec.to_builtins(found.unread(each.name))}
        for each in found.readers
    ]
    return {
        "log": msgspec.structs.asdict(found.info),
        "at_ms": now_ms,
        "shards": shards,
        "readers": readers,
        "hosts": found.hosts,
        "holder": None if found.holder is None else f"{found.holder.stream}/{found.holder.shard}",
        "trouble": found.trouble,
    }


@landing.command("verify", short_help="Prove that the log is whole.", epilog=EPILOG)
@_on_log
@click.option("--quick", is_flag=True, help="Read no segment that a manifest knows: only names and sizes.")
@click.option("--mend", is_flag=True, help="Write lost pages of the manifest again, from their segments.")
@_jobs(8)
def verify(log: ChosenLog, *, quick: bool, mend: bool, jobs: int) -> None:
    """Read every segment, and name each problem with number, position and path.

    Numbers have no hole, each segment continues the one before, records are in order, checksums fit, manifests say
    what the segments say, and marks no more than there is. The last line says `clean`, or how many problems there are.
    """
    problems: list[str] = []

    def tell(problem: Problem) -> None:
        if len(problems) < _MOST_PROBLEMS:
            problems.append(str(problem))
        if not log.as_json:
            log.tell(problem)

    verifier = Verifier(log.store, log.info, tell, jobs=jobs, quick=quick, mend=mend)
    verdict = verifier.run(log.stream, log.shard)
    left = (
        (verdict.replaced, "merged by compaction, which its next run removes after the grace period"),
        (verdict.expired, "expired, which the next expire removes"),
    )
    notes = [*map(str, verdict.notes), *(f"{counted(n, 'segment')} left over: {why}" for n, why in left if n)]
    document = {
        "is_clean": not verdict.problems,
        "segments": verdict.segments,
        "records": verdict.records,
        "size_bytes": verdict.size_bytes,
        "problem_count": verdict.problems,
        "problems": problems,
        "notes": notes,
    }
    log.end(document, *(f"note: {each}" for each in notes), str(verdict))
    if verdict.problems:
        sys.exit(EXIT_FAILURE)


@landing.command("compact", short_help="Merge small segments.", epilog=EPILOG)
@_on_log
@click.option(
    "--target",
    "target_bytes",
    metavar="BYTES",
    type=click.IntRange(1024),
    default=64 * 1024**2,
    show_default=True,
    help="Merge up to so many bytes.",
)
@click.option(
    "--grace",
    "grace_ms",
    metavar="AGE",
    default="1h",
    show_default=True,
    callback=_age_ms,
    help="How long what was merged stays for readers that have planned with it; a later run removes it.",
)
@_jobs(2)
@_dry_run
def compact(log: ChosenLog, *, target_bytes: int, grace_ms: int, jobs: int, dry_run: bool) -> None:
    """Merge small segments into larger ones, so that readers open fewer objects.

    Never the newest ones: only where 256 numbers are complete. Not for layout dated. May run beside anything, also beside
    itself; run it again after the grace period, and it removes what it has merged.
    """
    compactor = Compactor(
        log.store,
        log.info,
        log.tell,
        _CLOCK.wall_ms,
        target_bytes=target_bytes,
        grace_ms=grace_ms,
        writer=f"compact-{secrets.token_hex(8)}",
        dry_run=dry_run,
    )
    found = sorted_out(log.info, _known_objects(log.store), log.stream, log.shard)
    done = compactor.run(found, jobs)
    would = "would merge" if dry_run else "merged"
    log.end(
        msgspec.to_builtins(done) | {"is_dry_run": dry_run},
        f"{would} {counted(done.merged, 'segment')} into {done.into} ({size(done.size_bytes)}), removed {done.removed}; "
        f"{done.waiting} wait for the grace period",
    )


def _known_objects(store: LogStore) -> Iterator[StoredObject]:
    """All but the segments, of which there may be millions."""
    for folder in (MANIFESTS, COMPACTION):
        yield from store.listing(folder)


@landing.command("expire", short_help="Remove what is old, or read by all.", epilog=EPILOG)
@_on_log
@click.option(
    "--older-than",
    "older_ms",
    metavar="AGE",
    callback=_age_ms,
    help="Only what arrived so long ago, such as 7d.",
)
@click.option(
    "--read-by", metavar="NAME", multiple=True, help="Only what this reader has committed; can be repeated."
)
@click.option("--all-readers", is_flag=True, help="Only what all registered readers have committed.")
@click.option("--force", is_flag=True, help="Also what another registered reader still needs.")
@click.option(
    "--forget", "forgotten", metavar="NAME", multiple=True, help="First forget this reader; can be repeated."
)
@_jobs(8)
@_dry_run
@yes_option
def expire(
    log: ChosenLog,
    *,
    older_ms: int | None,
    read_by: tuple[str, ...],
    all_readers: bool,
    force: bool,
    forgotten: tuple[str, ...],
    jobs: int,
    dry_run: bool,
    yes: bool,
) -> None:
    """Remove segments from the beginning of each shard's log. All conditions that are given must hold.

    What a registered reader still needs stays, unless --force is given. The newest segment of a shard always stays.
    Marks of hosts that have not written for a week go, too.
    """
    for name in forgotten:
        if dry_run:
            log.tell(f"reader {name} would be forgotten")
        else:
            log.tell(
                f"reader {name} is forgotten" if forget(log.store, name) else f"there is no reader {name}"
            )
    now_ms = _CLOCK.wall_ms()
    document: dict[str, object] = {"segments": 0, "rows": 0, "size_bytes": 0, "is_dry_run": dry_run}
    if forgotten and older_ms is None and not read_by and not all_readers:
        log.end(document, "nothing else was asked for")
        return
    found = survey(log.store, log.info, log.stream, log.shard)
    stated = statements_of(log.store, log.info, found)
    readers = [each for each in readers_of(log.store, found.readers, log.tell) if each.name not in forgotten]
    before_ms = None if older_ms is None else now_ms - older_ms
    rules = rules_of(readers, before_ms=before_ms, read_by=read_by, all_readers=all_readers, force=force)
    noted = sorted_out(log.info, _known_objects(log.store), log.stream, log.shard)
    if not (dry_run or yes) and sys.stdin.isatty():
        gone = Expirer(log.store, log.info, lambda _line: None, at_ms=now_ms, dry_run=True).run(
            noted, rules, jobs
        )
        ask(f"remove {counted(gone.segments, 'segment')}, {counted(gone.rows, 'record')}?", yes=yes)
    expire_marks(log.store, stated, log.tell, at_ms=now_ms, dry_run=dry_run)
    gone = Expirer(log.store, log.info, log.tell, at_ms=now_ms, dry_run=dry_run).run(noted, rules, jobs)
    document |= {"segments": gone.segments, "rows": gone.rows, "size_bytes": gone.size_bytes}
    would = "would expire" if dry_run else "expired"
    log.end(
        document,
        f"{would}: {counted(gone.segments, 'segment')}, {counted(gone.rows, 'record')}, {size(gone.size_bytes)}",
    )
