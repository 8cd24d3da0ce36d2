"""Faults and counts over HTTP, beside the service itself: for tests in another process. Knows no operation.

`GET /_local/calls` tells how often each operation was called. `POST /_local/faults` orders faults: JSON with
`operation`, `fault` (`error`, `drop` or a kind of trouble), and where they mean something `code`, `seconds`, `event`
and `times`. `DELETE /_local/faults` takes all back that have not happened.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from difflib import get_close_matches
from typing import Final, Protocol, cast

import orjson
from aiohttp import web

from kcl_local.faults import DROP
from kcl_local.troubles import Kind, Trouble, Troubles

CALLS: Final = "/_local/calls"
FAULTS: Final = "/_local/faults"


class Controlled(Protocol):
    """What can be made to fail."""

    @property
    def calls(self) -> Counter[str]:
        """How often each operation was called."""
        ...

    @property
    def operations(self) -> Collection[str]:
        """The names of all operations that can fail."""
        ...

    @property
    def troubles(self) -> Troubles:
        """What happens to answers on their way."""
        ...

    def fail_next(self, operation: str, code: str, times: int = 1) -> None:
        """Let the next calls fail; ValueError for an operation that does not exist."""
        ...

    def clear_faults(self) -> None:
        """Nothing is to fail any more."""
        ...


def add_control(application: web.Application, controlled: Controlled) -> None:
    """Answer those paths too."""
    control = _Control(controlled)
    application.router.add_get(CALLS, control.calls)
    application.router.add_post(FAULTS, control.order)
    application.router.add_delete(FAULTS, control.clear)


class _Control:
    def __init__(self, controlled: Controlled) -> None:
        self._controlled = controlled

    async def calls(self, _request: web.Request) -> web.Response:
        body = orjson.dumps(dict(self._controlled.calls)) + b"\n"
        return web.Response(body=body, content_type="application/json")

    async def order(self, request: web.Request) -> web.Response:
        try:
            _order(self._controlled, await read_object(request))
        except KeyError as error:
            raise web.HTTPBadRequest(text=f"no such fault: {error} is missing\n") from error
        except (TypeError, ValueError) as error:
            raise web.HTTPBadRequest(text=f"no such fault: {error}\n") from error
        return web.Response(status=204)

    async def clear(self, _request: web.Request) -> web.Response:
        self._controlled.clear_faults()
        return web.Response(status=204)


async def read_object(request: web.Request) -> dict[str, object]:
    """The body, a JSON object; else ValueError or TypeError."""
    told = cast("object", orjson.loads(await request.read()))
    if not isinstance(told, dict):
        raise TypeError("the body is not a JSON object")
    return cast("dict[str, object]", told)


def _order(controlled: Controlled, told: dict[str, object]) -> None:
    operation, fault = str(told["operation"]), str(told["fault"])
    _check_names(controlled, operation, fault)
    times = _whole(told.get("times", 1))
    if fault == "error":
        controlled.fail_next(operation, str(told["code"]), times)
    elif fault == "drop":
        controlled.fail_next(operation, DROP, times)
    else:
        trouble = Trouble(
            Kind(fault),
            event=_whole(told.get("event", 0)),
            seconds=_number(told.get("seconds", 0)),
            code=str(told.get("code", "InternalFailureException")),
        )
        controlled.troubles.add(operation, trouble, times)


def _check_names(controlled: Controlled, operation: str, fault: str) -> None:
    """ValueError for a name that means nothing, with the names that do."""
    if operation not in controlled.operations:
        near = get_close_matches(operation, sorted(controlled.operations), n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"{operation} is not an operation of this endpoint{meant}")
    kinds = ("error", "drop", *Kind)
    if fault not in kinds:
        raise ValueError(f"{fault} is none; there are {', '.join(kinds)}")


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not a whole number")
    return value


def _number(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not a number")
    return value
