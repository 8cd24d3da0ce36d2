"""A group of commands of which one is meant when a file is named, and which loads the others only when they run.

Owns how the words of a command line find their command: for running, for help and for a shell's completion. Knows no
command itself.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import click
from click.shell_completion import CompletionItem


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


class NoSuchCommand(click.UsageError):
    """Raised when the first word is neither a command nor a file."""

    @classmethod
    def of(cls, word: str, program: str, commands: Sequence[str], context: click.Context) -> NoSuchCommand:
        """What the word was probably meant to be.

        Args:
            word: as typed.
            program: name of the program.
            commands: the names of all.
            context: for the usage line.
        """
        options = {"help": "--help", "version": "--version"}
        near = [options[word]] if word in options else get_close_matches(word, commands, n=3)
        meant = " or ".join(f"`{program} {each}`" for each in near)
        hint = f"did you mean {meant}?" if meant else f"`{program} --help` lists the commands"
        return cls(f"no such command, and no such file: {word}; {hint}", context)


class CommandGroup(click.Group):
    """A group whose first word may be left out: options and files belong to the default command."""

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
        shown = {"help_option_names": ["-h", "--help"]}  # subcommands take them over
        super().__init__(
            name, help=help, epilog=epilog, params=params, context_settings=shown, no_args_is_help=True
        )
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
        if later is None:
            return super().get_command(ctx, cmd_name)
        try:
            return later.load(cmd_name)
        except ExtraMissing:
            if ctx.resilient_parsing:  # a shell asks for completions: there are none
                return None
            raise

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the default command's name in front of words that do not begin with a command or an own option.

        Raises:
            NoSuchCommand: the first word is none of ours, and cannot be meant as a file.
        """
        own_options = {spelling for each in self.get_params(ctx) for spelling in each.opts}
        if args and args[0] not in {*self.list_commands(ctx), *own_options}:
            if not ctx.resilient_parsing and not _may_be_file(args[0]):
                raise NoSuchCommand.of(args[0], ctx.info_name or "", self.list_commands(ctx), ctx)
            args = [self._default_name, *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The commands, none of them imported, or else files and the default command's options."""
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        if incomplete.startswith("-"):
            return [*self._default.shell_complete(ctx, incomplete), *super().shell_complete(ctx, incomplete)]
        found = [CompletionItem(name, help=self._summary(name)) for name in names]
        return found or [CompletionItem(incomplete, type="file")]

    def _summary(self, name: str) -> str:
        later = self._later.get(name)
        return self._default.get_short_help_str() if later is None else later.summary

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """That of the default command, which most people want, and that of the others."""
        default = " ".join(self._default.collect_usage_pieces(ctx))
        formatter.write_usage(ctx.command_path, default)
        formatter.write_usage(ctx.command_path, "COMMAND [OPTIONS] ...", prefix="       ")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The default command's options, the group's own, and one line for each other command."""
        theirs = [each for each in self._default.get_params(ctx) if "--help" not in each.opts]
        options = [each for each in (*theirs, *self.get_params(ctx)) if isinstance(each, click.Option)]
        records = [each.get_help_record(ctx) for each in options]
        with formatter.section("Options"):
            formatter.write_dl([record for record in records if record is not None])
        if self._later:
            with formatter.section("Commands (details: COMMAND --help)"):
                formatter.write_dl([(name, each.summary) for name, each in sorted(self._later.items())])


def _may_be_file(word: str) -> bool:
    """Whether a first word may name a file: an option does not, and a plain word only where there is such a file."""
    return word.startswith("-") or not word.replace("-", "").replace("_", "").isalnum() or Path(word).exists()
