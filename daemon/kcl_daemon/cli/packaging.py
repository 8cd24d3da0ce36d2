from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import click

from kcl_daemon.cli.common import EXIT_CONFIGURATION, EXIT_FAILURE

_ABOUT: Final = {
    "cloudformation": "tables and roles",
    "docs": "the documentation",
    "ecs": "a Fargate task",
    "grafana": "a dashboard",
    "kubernetes": "deployment, sidecar and autoscaler",
    "lambda": "what runs handlers of AWS Lambda in Node",
    "prometheus": "alerts",
    "sidecar": "a record forwarder over HTTP, and its image",
    "systemd": "a unit",
    "terraform": "a module with tables and roles",
    "watch": "a watcher from outside: unit, pod and scheduled job",
}
_DOCS: Final = "docs"
_LAMBDA: Final = "lambda"
_PACKAGE: Final = Path(__file__).parents[1]
_NOT_A_DOCUMENT: Final = "site_hooks.py"


@click.command("packaging")
@click.argument("name", required=False, metavar="[NAME]")
@click.option(
    "--write",
    "folder",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write the files to DIR/NAME; without NAME all of them. Existing files are never overwritten.",
)
def packaging(*, name: str | None, folder: Path | None) -> None:
    """List the files for running the daemon in production, print one, or write them to a folder.

    NAME is a listed name, such as systemd, or a file, such as kubernetes/hpa.yaml.
    """
    found = files(name)
    if not found:
        click.echo(f"kcl-daemon packaging: unknown name {name}; known: {', '.join(_ABOUT)}", err=True)
        sys.exit(EXIT_CONFIGURATION)
    if folder is not None:
        _write(found, folder)
    elif len(found) == 1:
        click.echo(next(iter(found.values())).read_bytes(), nl=False)
    else:
        for line in _listed(found, with_titles=name is None):
            click.echo(line)


def files(name: str | None) -> dict[str, Path]:
    every = {
        f"{prefix}{path.relative_to(root).as_posix()}": path
        for root, prefix in (
            (shipped_folder("packaging"), ""),
            (shipped_folder(_DOCS), f"{_DOCS}/"),
            (shipped_folder("samples", "clients/samples") / _LAMBDA, f"{_LAMBDA}/"),
        )
        for path in sorted(root.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts and path.name != _NOT_A_DOCUMENT
    }
    if name is None:
        return every
    wanted = name.strip("/")
    return {each: path for each, path in every.items() if each == wanted or each.startswith(f"{wanted}/")}


def shipped_folder(name: str, in_checkout: str | None = None) -> Path:
    shipped = _PACKAGE / "shipped" / name
    return shipped if shipped.is_dir() else _PACKAGE.parents[1] / (in_checkout or name)


def _listed(found: dict[str, Path], *, with_titles: bool) -> list[str]:
    lines: list[str] = []
    for each in found:
        top, _, rest = each.partition("/")
        if with_titles and (not lines or f"{top}: {_ABOUT.get(top, '')}" not in lines):
            lines.append(f"{top}: {_ABOUT.get(top, '')}")
        lines.append(f"  {top}/{rest}" if with_titles else each)
    return lines


def _write(found: dict[str, Path], folder: Path) -> None:
    targets = {folder / each: path for each, path in found.items()}
    there = [target for target in targets if target.exists()]
    if there:
        click.echo(f"kcl-daemon packaging: {there[0]} already exists; nothing was written", err=True)
        sys.exit(EXIT_FAILURE)
    try:
        for target, path in targets.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
            click.echo(target)
    except OSError as error:
        click.echo(f"kcl-daemon packaging: {error}", err=True)
        sys.exit(EXIT_FAILURE)
