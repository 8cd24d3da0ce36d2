"""A LogStore in memory, with faults on demand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from kcl_landing.store import Cause, NoObject, StoredObject, StoreTrouble

Operation = Literal["create", "replace", "read", "listing", "remove"]


@dataclass(slots=True)
class Fault:
    """With `after` the call takes effect and its answer is lost. Only for paths that contain `within`."""

    operation: Operation
    cause: Cause = "unreachable"
    after: bool = False
    times: int = 1
    within: str = ""


class MemoryStore:
    """`before` is called before each operation with its name and path, outside the lock: to wait, to count, to interleave.

    With `conditional` off `create` replaces what is there, as a store without conditional creation does.
    """

    def __init__(
        self,
        *,
        before: Callable[[Operation, str], object] = lambda _operation, _path: None,
        conditional: bool = True,
        room_bytes: int | None = None,
    ) -> None:
        self.objects: dict[str, bytes] = {}
        self.calls: list[tuple[Operation, str]] = []
        self.faults: list[Fault] = []
        self.before = before
        self.conditional = conditional
        self.room_bytes = room_bytes
        self._lock = threading.Lock()

    def create(self, path: str, content: bytes | memoryview) -> bool:
        lost = self._begin("create", path)
        with self._lock:
            is_free = path not in self.objects
            if is_free or not self.conditional:
                self._put(path, bytes(content))
        self._answer(lost, path)
        return is_free or not self.conditional

    def replace(self, path: str, content: bytes) -> None:
        lost = self._begin("replace", path)
        with self._lock:
            self._put(path, bytes(content))
        self._answer(lost, path)

    def read(self, path: str) -> bytes:
        self._begin("read", path)
        with self._lock:
            if path not in self.objects:
                raise NoObject(path)
            return self.objects[path]

    def listing(self, folder: str, *, after: str = "") -> Iterator[StoredObject]:
        self._begin("listing", folder)
        below = f"{folder}/" if folder else ""
        with self._lock:
            found = [
                StoredObject(path, len(content))
                for path, content in sorted(self.objects.items())
                if path.startswith(below) and path > after
            ]
        return iter(found)

    def remove(self, paths: Sequence[str]) -> None:
        lost = self._begin("remove", " ".join(paths))
        with self._lock:
            for path in paths:
                self.objects.pop(path, None)
        self._answer(lost, " ".join(paths))

    def _used(self) -> int:
        return sum(map(len, self.objects.values()))

    def _put(self, path: str, content: bytes) -> None:
        if self.room_bytes is not None and self._used() + len(content) > self.room_bytes:
            raise StoreTrouble("full", f"{path}: there are {self.room_bytes} bytes")
        self.objects[path] = content

    def _begin(self, operation: Operation, path: str) -> Fault | None:
        """The fault to raise once the call has taken effect."""
        self.before(operation, path)
        with self._lock:
            self.calls.append((operation, path))
            found = next(
                (each for each in self.faults if each.operation == operation and each.within in path), None
            )
            if found is None:
                return None
            found.times -= 1
            if not found.times:
                self.faults.remove(found)
        if found.after:
            return found
        raise StoreTrouble(found.cause, f"{operation} {path} was told to fail")

    def _answer(self, lost: Fault | None, path: str) -> None:
        if lost is not None:
            raise StoreTrouble(lost.cause, f"the answer to {lost.operation} {path} is lost")
