"""How `kcl-daemon check` puts what it found: a sentence for each notice, and one line that says what it comes to.

Pure, but for a look whether a file is there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from kcl_daemon.cli.findings import NOT_TRIED, Finding
from kcl_daemon.config.effective import word
from kcl_daemon.config.notices import Notice
from kcl_daemon.observe.redact import on_one_line, shown

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
    "credentials_provider_doubtful": "{provider}: {advice}",
    "credentials_from_sdk_chain": "credentials come from the default chain of the AWS SDK ({chain})",
}
_SCRIPTS: Final = frozenset(
    {".py", ".js", ".mjs", ".cjs", ".ts", ".rb", ".pl", ".sh", ".php", ".lua", ".r", ".jar", ".dll"}
)
# What follows them is no file of the program: a module, or the program itself.
_IN_PLACE_OF_A_SCRIPT: Final = frozenset({"-m", "-c", "-e", "--eval"})


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check comes to.

    Args:
        errors: that keep a daemon from working.
        warnings: that do not.
        not_tried: what could not be tried without leaving a trace in AWS.
        asked_aws: whether AWS was asked at all.
    """

    errors: int = 0
    warnings: int = 0
    not_tried: int = 0
    asked_aws: bool = False

    def line(self) -> str:
        """`OK: would start; 1 warning; 2 things not tried`, or `1 error, 1 warning`."""
        counts = [
            _counted(number, noun)
            for number, noun in ((self.errors, "error"), (self.warnings, "warning"))
            if number
        ]
        parts = [", ".join(counts)] if counts else []
        if not self.errors:
            parts.insert(0, "OK: would start")
        if not self.asked_aws and not self.errors:
            parts.append("AWS was not checked (use --with-aws)")
        if self.not_tried:
            parts.append(f"{_counted(self.not_tried, 'thing')} not tried")
        return "; ".join(parts)


def verdict_of(warnings: Sequence[str], findings: Sequence[Finding] | None) -> Verdict:
    """What it comes to; no findings at all: AWS was not asked."""
    told = findings or ()
    return Verdict(
        errors=sum(not good for good, _ in told),
        warnings=len(warnings),
        not_tried=sum(good and NOT_TRIED in text for good, text in told),
        asked_aws=findings is not None,
    )


def sentence(notice: Notice, file: str) -> str:
    """One line about one line of the file."""
    where = f"environment, {notice.variable}" if notice.variable else f"{file}:{notice.line}"
    facts = {name: word(value) for name, value in notice.facts.items()}
    nearest = facts.get("nearest")
    facts["meant"] = "" if nearest is None else f"; did you mean {nearest}?"
    form = _SENTENCES.get(notice.event)
    if form is None:
        said = f"{notice.event} {' '.join(f'{name}={value}' for name, value in notice.facts.items())}"
    else:
        said = form.format_map(facts)
    return on_one_line(f"{where}: {notice.level}: {notice.key} {said}").rstrip()


def missing_script(command: Sequence[str], exists: Callable[[str], bool]) -> str | None:
    """The script of a command such as `python3 consumer.py` where it is not there; None: it is, or there is none to see.

    Args:
        command: program and arguments.
        exists: whether there is such a file, as seen from the working folder.
    """
    for argument in command[1:]:
        if argument in _IN_PLACE_OF_A_SCRIPT:
            return None
        if PurePath(argument).suffix.lower() in _SCRIPTS and not argument.startswith("-"):
            return None if exists(argument) else argument
    return None


def about_script(script: str, folder: str) -> str:
    """The warning about it."""
    where = "is not there" if script.startswith("/") else f"is not in {folder}, where children start"
    return on_one_line(f"executableName: warning: {shown(script)} {where}")


def about_region(name: str, nearest: str | None) -> str:
    """The warning about a region that the AWS SDK does not know."""
    meant = "" if nearest is None else f"; did you mean {nearest}?"
    return on_one_line(f"region: warning: the installed AWS SDK does not know the region {name}{meant}")


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
