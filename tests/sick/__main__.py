"""Prints the sicknesses with what was seen of each: `python -m tests.sick [NAME...]`."""

from __future__ import annotations

import argparse

from tests.sick.all import SICKNESSES
from tests.sick.sickness import Course, broken_promises, play


def _row(course: Course) -> str:
    sickness = course.sickness
    after, ended = course.fired_after_s, course.ended_after_s
    fired = "never" if after is None else f"after {after / 60:g} min"
    over = "-" if ended is None else f"{ended / 60:g} min after healing"
    lines = [f"{sickness.name}: {sickness.alert} ({sickness.severity}), fired {fired}, ended {over}"]
    lines += [
        f"  {where}: {course.shown(where, words) or 'NOT SEEN: ' + words}" for where, words in sickness.words
    ]
    if course.others:
        lines.append(f"  beside it: {', '.join(sorted(course.others))}")
    lines += [f"  BROKEN PROMISE: {each}" for each in broken_promises(course)]
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.sick", description=__doc__)
    parser.add_argument("names", nargs="*", help="only those whose name has one of these words")
    parser.add_argument("--texts", action="store_true", help="also all that was shown")
    options = parser.parse_args()
    for sickness in SICKNESSES:
        if options.names and not any(name in sickness.name for name in options.names):
            continue
        course = play(sickness)
        print(_row(course), flush=True)  # noqa: T201 - a command line
        if options.texts:
            _print_all(course)


def _print_all(course: Course) -> None:
    for each in course.firings:
        print(f"  {each.from_s:6g} to {each.to_s:6g}  {each.alert} {dict(sorted(each.labels))}")  # noqa: T201 - a command line
    for where, texts in course.seen.texts.items():
        last = ""
        for at_s, text in texts:
            shown = text.partition("\n\nShards:")[0]
            if shown != last and at_s >= course.sickness.begins_s:
                print(f"  [{where} {at_s:g}] {shown[:1000]}")  # noqa: T201 - a command line
            last = shown


if __name__ == "__main__":
    main()
