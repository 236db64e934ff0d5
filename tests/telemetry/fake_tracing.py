"""Tracing that keeps its spans, so that a test can read them."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class FakeSpan:
    name: str
    parent: str
    at: int | None
    traceparent: str
    attributes: dict[str, Any] = field(default_factory=dict)
    ended: list[tuple[int | None, str]] = field(default_factory=list)  # time and error of each call

    def set(self, attributes: dict[str, Any]) -> None:
        self.attributes |= attributes

    def end(self, at: int | None = None, *, error: str = "") -> None:
        self.ended.append((at, error))


class FakeTracing:
    """Keeps every span that is started."""

    def __init__(self) -> None:
        self.spans: list[FakeSpan] = []

    def start(self, name: str, parent: str, *, at: int | None = None, server: bool = False) -> FakeSpan:
        self.spans.append(FakeSpan(name, parent, at, f"span-{len(self.spans)}"))
        return self.spans[-1]

    def stop(self) -> None: ...
