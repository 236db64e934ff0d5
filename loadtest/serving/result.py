"""The measurements of one request: when it was sent, when each chunk arrived, how many tokens it had.

Pure data. Times are in seconds on one monotonic clock with an arbitrary zero.
"""

from dataclasses import dataclass, field
from itertools import pairwise


@dataclass
class RequestResult:
    requested_input_len: int
    requested_output_len: int
    start: float
    end: float = 0.0  # when the last chunk arrived, or when the request failed
    chunk_times: list[float] = field(default_factory=list)  # of chunks with text
    prompt_tokens: int | None = None  # from the server's `usage`; None: it sent none
    completion_tokens: int | None = None
    error: str | None = None

    @property
    def input_tokens(self) -> int:
        return self.requested_input_len if self.prompt_tokens is None else self.prompt_tokens

    @property
    def output_tokens(self) -> int:
        return len(self.chunk_times) if self.completion_tokens is None else self.completion_tokens

    @property
    def latency(self) -> float:
        """End-to-end latency in seconds: from sending to the last chunk, or to the failure."""
        return self.end - self.start

    @property
    def ttft(self) -> float | None:
        """Time to first token in seconds: from sending to the first chunk with text. None without text."""
        return self.chunk_times[0] - self.start if self.chunk_times else None

    @property
    def tpot(self) -> float | None:
        """Time per output token in s: (latency - TTFT) / (output tokens - 1). None below two tokens or without text."""
        if self.ttft is None or self.output_tokens < 2:
            return None
        return (self.latency - self.ttft) / (self.output_tokens - 1)

    @property
    def itls(self) -> list[float]:
        """Inter-token latencies: seconds between consecutive chunks with text. A chunk may contain several tokens."""
        return [after - before for before, after in pairwise(self.chunk_times)]
