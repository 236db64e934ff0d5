"""What was measured of one request: when it was sent, when its text came, how many tokens it had.

Pure data; times are in seconds on one monotonic clock, whose zero means nothing.
"""

from dataclasses import dataclass, field
from itertools import pairwise


@dataclass
class RequestResult:
    asked_input_len: int
    asked_output_len: int
    start: float
    end: float = 0.0  # the last chunk of an answer, or the failure
    chunk_times: list[float] = field(default_factory=list)  # of chunks that bring text
    prompt_tokens: int | None = None  # from the server's `usage`; None: it sent none
    completion_tokens: int | None = None
    error: str | None = None

    @property
    def input_tokens(self) -> int:
        return self.asked_input_len if self.prompt_tokens is None else self.prompt_tokens

    @property
    def output_tokens(self) -> int:
        return len(self.chunk_times) if self.completion_tokens is None else self.completion_tokens

    @property
    def latency(self) -> float:
        return self.end - self.start

    @property
    def ttft(self) -> float | None:
        """None for an answer without any visible text."""
        return self.chunk_times[0] - self.start if self.chunk_times else None

    @property
    def tpot(self) -> float | None:
        """None where there is no second token."""
        if self.ttft is None or self.output_tokens < 2:
            return None
        return (self.latency - self.ttft) / (self.output_tokens - 1)

    @property
    def itls(self) -> list[float]:
        """One gap fewer than chunks; a chunk may bring several tokens."""
        return [after - before for before, after in pairwise(self.chunk_times)]
