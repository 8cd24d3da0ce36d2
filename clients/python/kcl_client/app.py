"""One function as a whole program: `app = App("orders")`, `@app.process`, `app.run()`.

In the children, which import the same file, `app.run()` does nothing, so it may stand at the end of the file without a
guard.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from types import FrameType, MappingProxyType
from typing import Final, NoReturn, TypeVar

from kcl_client._function import UserFunction, shape_of, short

__all__ = ["App"]

F = TypeVar("F", bound=Callable[..., object])

_CHILD: Final = "KCL_SHARD_ID"
_MAIN: Final = "__main__"
_DAEMON: Final = "kcl_daemon"
_NOTHING: Final[Mapping[str, object]] = MappingProxyType({})


class App:
    """A stream and the function that gets its records. All options are those of `kcl-daemon run`.

    Words of the command line overrule them: `python consumer.py --local --reload`.

    Args:
        stream: name or ARN.
        start: as `--from`: "TRIM_HORIZON", "LATEST", a time, or an age such as "2h".
        properties: as `--set`; True is `true`.
    """

    def __init__(
        self,
        stream: str,
        *,
        application: str | None = None,
        start: str | None = None,
        concurrency: int | None = None,
        checkpoint_every_s: float | None = None,
        region: str | None = None,
        properties: Mapping[str, object] = _NOTHING,
        local: bool = False,
    ) -> None:
        self._stream = stream
        self._function: UserFunction | None = None
        self._options: dict[str, object] = {
            "--application": application,
            "--from": start,
            "--concurrency": concurrency,
            "--checkpoint-every": checkpoint_every_s,
            "--region": region,
            "--local": local,
        }
        self._properties = dict(properties)

    def process(self, function: F) -> F:
        """The function that gets each record; it can be called and tested as before.

        Raises:
            CannotRun: it cannot be called with a record.
            TypeError: there is one already, or it is not at the top level of a module.
        """
        if self._function is not None:
            first = getattr(self._function, "__qualname__", self._function)
            raise TypeError(
                f"this App has the function {first} already; make another App, in a program of its own"
            )
        shape = shape_of(function)
        if "<" in shape.name:
            raise TypeError(
                f"{shape.where}: {shape.name} cannot be imported by name; define it at the top level of the file"
            )
        self._function = function
        return function

    def run(self, arguments: Sequence[str] | None = None) -> None:
        """Become `kcl-daemon run` with this function. Returns at once in a child and in a file that is imported.

        Args:
            arguments: in place of those of the command line.

        Raises:
            TypeError: there is no function, or its name leads to another one.
            SystemExit: kcl_daemon is not installed.
        """
        caller = inspect.currentframe()
        if _is_child() or _is_imported(None if caller is None else caller.f_back):
            return
        words = [*self.command(), *(sys.argv[1:] if arguments is None else arguments)]
        if find_spec(_DAEMON) is None:
            raise SystemExit("App.run needs the daemon: pip install kcl-daemon")
        _become(words)

    def command(self) -> list[str]:
        """What `run` becomes, without the arguments of the command line."""
        if self._function is None:
            raise TypeError("this App has no function; put @app.process above it")
        return ["run", self._stream, _target(self._function), *self._words()]

    def _words(self) -> Iterator[str]:
        for option, value in self._options.items():
            if value is True:
                yield option
            elif value not in {None, False}:
                yield f"{option}={value}"
        for key, value in self._properties.items():
            yield f"--set={key}={str(value).lower() if isinstance(value, bool) else value}"


def _is_child() -> bool:
    """Or the check of the function."""
    spec = getattr(sys.modules.get(_MAIN), "__spec__", None)
    return _CHILD in os.environ or getattr(spec, "name", "") == "kcl_client.run"


def _is_imported(caller: FrameType | None) -> bool:
    return (
        caller is not None
        and caller.f_code.co_name == "<module>"
        and caller.f_globals.get("__name__") != _MAIN
    )


def _target(function: UserFunction) -> str:
    module, name = function.__module__, str(getattr(function, "__qualname__", ""))
    found: object = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not function:
        raise TypeError(
            f"{name} in {module} is not the function that @app.process got; put it on top of its other decorators"
        )
    if module != _MAIN:
        return f"{module}:{name}"
    main = sys.modules[_MAIN]
    spec = getattr(main, "__spec__", None)
    if spec is not None:  # python -m package.consumer
        return f"{spec.name}:{name}"
    file = getattr(main, "__file__", None)
    if file is None:
        raise TypeError(f"{name} is in no file, which the children could import")
    return f"{short(os.path.abspath(file))}:{name}"  # noqa: PTH100 - without following links


def _become(words: list[str]) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", _DAEMON, *words])  # noqa: S606 - the daemon itself
