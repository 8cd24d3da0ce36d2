"""The client libraries as this tier knows them: what each is called, and how its processor is started."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.dropin.obtain import kcl_for_node, kclpy

PROCESSORS: Final = Path(__file__).with_name("processors")


@dataclass(frozen=True, slots=True)
class Library:
    """One generation of one library.

    Args:
        name: in the matrix.
        command: gives the command of its processor; skips or fails the test where the library cannot be had.
    """

    name: str
    command: Callable[[], str]


def _python(generation: str) -> Callable[[], str]:
    return lambda: f"{sys.executable} {PROCESSORS / 'kclpy.py'} {kclpy()} {generation}"


def _node(generation: str) -> Callable[[], str]:
    return lambda: f"node {PROCESSORS / 'node.js'} {kcl_for_node()} {generation}"


def _strict(language: str) -> Callable[[], str]:
    return lambda: f"{sys.executable} {PROCESSORS / 'strict.py'} {language}"


LIBRARIES: Final = (
    Library("Python v1", _python("v1")),
    Library("Python v2", _python("v2")),
    Library("Python v3", _python("v3")),
    Library("Node v1", _node("v1")),
    Library("Node v2", _node("v2")),
    Library("Ruby*", _strict("ruby")),
    Library(".NET*", _strict("dotnet")),
)
