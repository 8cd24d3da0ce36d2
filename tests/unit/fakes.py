"""Small adapters for unit tests: the loop's own time as a clock, a log that remembers, chance without surprises."""

from __future__ import annotations

from dataclasses import dataclass, field

import anyio


class LoopClock:
    """The Clock port on the running loop's time; virtual under `run_virtual`."""

    def monotonic(self) -> float:
        return anyio.current_time()

    def wall_ms(self) -> int:
        return 1_770_000_000_000 + int(anyio.current_time() * 1000)

    def passed_ms(self) -> int:
        return self.wall_ms()

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)

    def move_on_after(self, seconds: float | None) -> anyio.CancelScope:
        return anyio.move_on_after(seconds)


class CalmChance:
    """The Randomness port without chance: always the lower end, tokens that count."""

    def __init__(self) -> None:
        self._tokens = 0

    def uniform(self, low: float, high: float) -> float:
        return low

    def token(self) -> str:
        self._tokens += 1
        return f"token-{self._tokens}"


@dataclass
class MemoryLog:
    """The Log port as a list of (level, event, fields)."""

    fields: dict[str, object] = field(default_factory=dict[str, object])
    lines: list[tuple[str, str, dict[str, object]]] = field(
        default_factory=list[tuple[str, str, dict[str, object]]]
    )

    def bind(self, **fields: object) -> MemoryLog:
        return MemoryLog({**self.fields, **fields}, self.lines)

    def debug(self, event: str, /, **fields: object) -> None:
        self._add("debug", event, fields)

    def info(self, event: str, /, **fields: object) -> None:
        self._add("info", event, fields)

    def warning(self, event: str, /, **fields: object) -> None:
        self._add("warning", event, fields)

    def error(self, event: str, /, **fields: object) -> None:
        self._add("error", event, fields)

    def _add(self, level: str, event: str, fields: dict[str, object]) -> None:
        self.lines.append((level, event, {**self.fields, **fields}))

    def events(self, level: str | None = None) -> list[str]:
        """The events so far, of one level or of all."""
        return [event for found, event, _ in self.lines if level in (None, found)]
