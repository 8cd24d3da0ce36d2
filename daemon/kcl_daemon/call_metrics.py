"""Counts the calls of one AWS service by what came of them (`kcl_aws_calls_total`).

Owns the outcomes. Who calls, and what a call is for, is not known here.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final, TypeVar

from kcl_daemon.errors import AwsError, Throttled
from kcl_daemon.metrics.own import CALLS
from kcl_daemon.ports import Meters

_T = TypeVar("_T")
_SUCCESS: Final = "success"
_THROTTLED: Final = "throttled"
_FAILURE: Final = "failure"
OUTCOMES: Final = (_SUCCESS, _THROTTLED, _FAILURE)
"""The values of the label `outcome`."""


class CallMetrics:
    """The account of the calls of one service; each call is to be told of once.

    Args:
        meters: where they are counted.
        service: its name, as the label says it.
    """

    def __init__(self, meters: Meters, service: str) -> None:
        self._meters = meters
        self._service = service
        self._known: set[str] = set()

    async def counted(self, operation: str, call: Awaitable[_T]) -> _T:
        """What the call gives, or raises; one that is cancelled is not counted."""
        self.begins(operation)
        try:
            answer = await call
        except AwsError as error:
            self.failed(operation, error)
            raise
        self.succeeded(operation)
        return answer

    def begins(self, operation: str) -> None:
        """A call is to be made. Its series are there at 0 then: a refusal that makes a series is no increase of it."""
        if operation not in self._known:
            self._known.add(operation)
            for outcome in OUTCOMES:
                self._add(operation, outcome, 0.0)

    def succeeded(self, operation: str) -> None:
        """A call was answered as it should be."""
        self._add(operation, _SUCCESS)

    def failed(self, operation: str, error: AwsError) -> None:
        """A call was refused, or not answered."""
        self._add(operation, _THROTTLED if isinstance(error, Throttled) else _FAILURE)

    def _add(self, operation: str, outcome: str, count: float = 1.0) -> None:
        self._meters.add(CALLS, count, service=self._service, operation=operation, outcome=outcome)
