"""Blocking code of production in virtual time: it runs in a thread of its own, and each call to the store is a step.

Only one thread runs at a time, so a run is the same each time. Knows nothing of how long a call takes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from queue import SimpleQueue
from typing import Generic, TypeVar

from kcl_landing.store import LogStore, StoredObject

T = TypeVar("T")
Request = Callable[[LogStore], object]


class _Gone(BaseException):
    """Raised in blocking code whose process is gone."""


class HandedOver:
    """Port LogStore: each call is handed to whoever carries out the steps."""

    def __init__(self) -> None:
        self.requests: SimpleQueue[tuple[str, str, Request]] = SimpleQueue()
        self.answers: SimpleQueue[object] = SimpleQueue()

    def _ask(self, kind: str, path: str, request: Request) -> object:
        self.requests.put((kind, path, request))
        answer = self.answers.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def create(self, path: str, content: bytes | memoryview) -> bool:
        """As the port says."""
        kept = bytes(content)
        return bool(self._ask("create", path, lambda store: store.create(path, kept)))

    def replace(self, path: str, content: bytes) -> None:
        """As the port says."""
        self._ask("replace", path, lambda store: store.replace(path, content))

    def read(self, path: str) -> bytes:
        """As the port says."""
        content = self._ask("read", path, lambda store: store.read(path))
        assert isinstance(content, bytes)
        return content

    def listing(self, folder: str, *, after: str = "") -> Iterator[StoredObject]:
        """As the port says."""
        found = self._ask("listing", folder, lambda store: list(store.listing(folder, after=after)))
        assert isinstance(found, list)
        return iter(found)

    def remove(self, paths: Sequence[str]) -> None:
        """As the port says."""
        self._ask("remove", "", lambda store: store.remove(paths))


class Blocking(Generic[T]):
    """Runs `call` step by step; after `run` it has the result."""

    def __init__(self, store: HandedOver, call: Callable[[], T]) -> None:
        self._store = store
        self._call = call
        self._results: list[T] = []
        self._error: BaseException | None = None

    def steps(self) -> Generator[tuple[str, str, Request], object, T]:
        """Yields requests, is sent their answers; an error as an answer is raised in the call."""
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        try:
            while (request := self._store.requests.get())[0]:
                self._store.answers.put((yield request))
        except BaseException:
            self._store.answers.put(_Gone())
            raise
        finally:
            thread.join()
        if self._error is not None:
            raise self._error
        return self._results[0]

    def _run(self) -> None:
        try:
            self._results.append(self._call())
        except BaseException as error:  # noqa: BLE001 - raised again where the steps are taken
            self._error = error
        self._store.requests.put(("", "", lambda _store: None))
