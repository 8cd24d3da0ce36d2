"""A group of commands of which one is meant when none is named, and which loads the others only when they run.

Owns how the words of a command line find their command. Knows no command itself.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass

import click


class ExtraMissing(click.ClickException):
    """Raised when a command needs an extra of this distribution that is not installed."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class LaterCommand:
    """A command that is imported only when it is called, so that `--help` stays fast.

    Args:
        where: `package.module:attribute`, a click command.
        summary: one line for the help of the group.
        extra: the extra of this distribution that it needs; empty: none.
        modules: the top-level packages of that extra.
    """

    where: str
    summary: str
    extra: str = ""
    modules: tuple[str, ...] = ()

    def load(self, name: str) -> click.Command:
        """Import it.

        Raises:
            ExtraMissing: the message has the command that installs it.
        """
        missing = [module for module in self.modules if importlib.util.find_spec(module) is None]
        if missing:
            raise ExtraMissing(
                f"`{name}` needs packages that are not installed ({', '.join(missing)}); "
                f'install them with: pip install "kcl-daemon[{self.extra}]"'
            )
        module, _, attribute = self.where.partition(":")
        command: object = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command), f"{self.where} is a click command"
        return command


class CommandGroup(click.Group):
    """A group whose first word may be left out: what names no command belongs to the default one."""

    def __init__(
        self,
        *,
        name: str,
        default: click.Command,
        later: Mapping[str, LaterCommand],
        help: str,  # noqa: A002 - click's name
        epilog: str,
        params: list[click.Parameter],
    ) -> None:
        super().__init__(name, help=help, epilog=epilog, params=params)
        assert default.name is not None, "the default command has a name"
        self._default = default
        self._default_name = default.name
        self._later = later
        self.add_command(default)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """All names, none of them imported."""
        return sorted((self._default_name, *self._later))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """One command, imported now if it has not been."""
        later = self._later.get(cmd_name)
        return super().get_command(ctx, cmd_name) if later is None else later.load(cmd_name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the default command's name in front of words that do not begin with a command or an own option."""
        own_options = {spelling for each in self.get_params(ctx) for spelling in each.opts}
        if not args or args[0] not in {*self.list_commands(ctx), *own_options}:
            args = [self._default_name, *args]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """The usage of the default command: that is what most people want to know."""
        return self._default.collect_usage_pieces(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The default command's options, the group's own, and one line for each other command."""
        theirs = [each for each in self._default.get_params(ctx) if "--help" not in each.opts]
        options = [each for each in (*theirs, *self.get_params(ctx)) if isinstance(each, click.Option)]
        records = [each.get_help_record(ctx) for each in options]
        with formatter.section("Options"):
            formatter.write_dl([record for record in records if record is not None])
        if self._later:
            with formatter.section("Other commands (COMMAND --help tells more)"):
                formatter.write_dl([(name, each.summary) for name, each in sorted(self._later.items())])
