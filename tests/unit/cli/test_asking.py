"""Who is asked before something is changed: a person always, a script only where it must say --yes."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner, Result

from kcl_daemon.cli import common


def asked(monkeypatch: pytest.MonkeyPatch, *, yes: bool, always: bool, person: bool, answer: str) -> Result:
    class Terminal:
        def isatty(self) -> bool:
            return person

    @click.command()
    def command() -> None:
        monkeypatch.setattr(common, "sys", type("Sys", (), {"stdin": Terminal()}))
        common.ask("delete all 8 letters?", yes=yes, always=always)
        click.echo("deleted")

    return CliRunner().invoke(command, input=answer)


@pytest.mark.parametrize("person", [True, False])
@pytest.mark.parametrize("always", [True, False])
def test_yes_on_the_command_line_asks_nobody(
    monkeypatch: pytest.MonkeyPatch, always: bool, person: bool
) -> None:
    done = asked(monkeypatch, yes=True, always=always, person=person, answer="")
    assert (done.exit_code, done.stdout) == (0, "deleted\n")


def test_a_person_who_says_no_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for always in (True, False):
        done = asked(monkeypatch, yes=False, always=always, person=True, answer="n\n")
        assert done.exit_code == 1
        assert "delete all 8 letters?" in done.output
        assert "deleted" not in done.output


def test_a_person_who_says_yes_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    done = asked(monkeypatch, yes=False, always=False, person=True, answer="y\n")
    assert (done.exit_code, done.output.splitlines()[-1]) == (0, "deleted")


def test_a_script_goes_on_where_scripts_may_and_is_refused_where_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(monkeypatch, yes=False, always=False, person=False, answer="").exit_code == 0
    assert asked(monkeypatch, yes=False, always=True, person=False, answer="").exit_code == 1
