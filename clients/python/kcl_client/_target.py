"""Errors of an import show the user's lines only."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from traceback import FrameSummary, TracebackException
from types import ModuleType
from typing import Final

from kcl_client._function import CannotRun, UserFunction, short

_FORM: Final = "consumer:handle, or path/consumer.py:handle"
_OURS: Final = (str(Path(__file__).parent), str(Path(importlib.__file__).parent), "<frozen ")


def load(target: str) -> UserFunction:
    """CannotRun says where the import failed, or what the module has instead."""
    where, colon, name = target.rpartition(":")
    if not colon or not where or not all(part.isidentifier() for part in name.split(".")):
        raise CannotRun(f"{target} is not MODULE:FUNCTION, such as {_FORM}")
    with stdout_as_stderr():
        module = _from_file(Path(where)) if is_file(where) else _module(where)
    found: object = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise CannotRun(_nothing_named(name, module), where=short(module.__file__ or where))
    return found  # type: ignore[return-value] # pyright: ignore[reportReturnType] - `shape_of` looks at what it is


def is_file(where: str) -> bool:
    return where.endswith(".py") or "/" in where


def _nothing_named(name: str, module: ModuleType) -> str:
    have = [each for each, value in vars(module).items() if callable(value) and not each.startswith("_")]
    near = get_close_matches(name, have, n=1)
    mine = [each for each in have if getattr(vars(module)[each], "__module__", None) == module.__name__]
    hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(mine) or 'no function'}"
    return f"there is no {name} in {module.__name__}; {hint}"


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise _import_failed(name, error) from error
        raise CannotRun(
            f"there is no module {error.name}; looked in {Path.cwd()} and in the packages of {sys.executable}"
        ) from None
    except (Exception, SystemExit) as error:
        raise _import_failed(name, error) from error


def _from_file(path: Path) -> ModuleType:
    """As Python runs a file: its folder comes first where modules are looked for."""
    if not path.is_file():
        raise CannotRun(f"there is no file {path}; looked from {Path.cwd()}")
    name = path.stem
    sys.path.insert(0, str(path.parent.resolve()))
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None, "it ends with .py"
    assert spec.loader is not None, "a file has one"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise _import_failed(name, error) from error
    return module


def _import_failed(name: str, error: BaseException) -> CannotRun:
    trace = TracebackException.from_exception(error)
    frames = _users_frames(trace)
    said = "".join(trace.format_exception_only()).strip().splitlines()[-1]
    if isinstance(error, SystemExit):
        said += '; guard what ends the program with `if __name__ == "__main__":`'
    where = f"{short(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
    if isinstance(error, SyntaxError) and error.filename:
        where = f"{short(error.filename)}:{error.lineno}"
    return CannotRun(f"{name} cannot be imported: {said}", where=where, trace="".join(trace.format()))


def _users_frames(trace: TracebackException) -> Sequence[FrameSummary]:
    for each in (trace.__cause__, trace.__context__):
        if each is not None:
            _users_frames(each)
    trace.stack[:] = [frame for frame in trace.stack if not frame.filename.startswith(_OURS)]
    return trace.stack


@contextmanager
def stdout_as_stderr() -> Generator[None]:
    """Descriptor 1 is the daemon's until `run` has moved it: what other programs write there is a stray line, too."""
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
