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


class CallMetrics:
    def __init__(self, meters: Meters, service: str) -> None:
        self._meters = meters
        self._service = service
        self._known: set[str] = set()

    async def counted(self, operation: str, call: Awaitable[_T]) -> _T:
        """Await and count the call; a cancelled one is not counted."""
        self.begins(operation)
        try:
            answer = await call
        except AwsError as error:
            self.failed(operation, error)
            raise
        self.succeeded(operation)
        return answer

    def begins(self, operation: str) -> None:
        """Before a call: create its series at 0.

        Otherwise the first failure would not show as an increase.
        """
        if operation not in self._known:
            self._known.add(operation)
            for outcome in OUTCOMES:
                self._add(operation, outcome, 0.0)

    def succeeded(self, operation: str) -> None:
        self._add(operation, _SUCCESS)

    def failed(self, operation: str, error: AwsError) -> None:
        self._add(operation, _THROTTLED if isinstance(error, Throttled) else _FAILURE)

    def _add(self, operation: str, outcome: str, count: float = 1.0) -> None:
        self._meters.add(CALLS, count, service=self._service, operation=operation, outcome=outcome)
