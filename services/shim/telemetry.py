"""What happened to one HTTP request that asks for tokens, as its client saw it: metrics, a trace's root, a log line."""

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass

from services.rpc.finish_reasons import NAME_BY_REASON
from services.rpc.generated import text_pb2
from services.shim.metrics import ModelMetrics
from services.telemetry.logs import fields
from services.telemetry.spans import Span

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Choice:
    """Moments of the performance counter, in seconds."""

    first: float = 0.0
    last: float = 0.0
    num_tokens: int = 0
    accepted: bool = False
    reason: str = ""


class RequestTelemetry:
    """Told of everything in the order in which it happens; `close` comes once, last."""

    def __init__(self, request_id: str, metrics: ModelMetrics, span: Span) -> None:
        self.span = span
        self._request_id = request_id
        self._metrics = metrics
        self._began = time.perf_counter()
        self._choices: list[_Choice] = []
        self._num_prompt_tokens = 0
        self._num_cached_tokens = 0
        self._refused = ""
        self._closed = False

    def submitted(self, num_choices: int) -> None:
        self._choices = [_Choice() for _ in range(num_choices)]

    def accepted(
        self, indices: Iterable[int], max_tokens: int | None, num_prompt_tokens: int, num_cached_tokens: int
    ) -> None:
        """One prompt, with these choices, was found good."""
        choices = [self._choices[index] for index in indices]
        for choice in choices:
            choice.accepted = True
        self._num_prompt_tokens += num_prompt_tokens
        self._num_cached_tokens += num_cached_tokens
        metrics = self._metrics
        metrics.prompt_tokens.inc(num_prompt_tokens)
        metrics.prompt_tokens_cached.inc(num_cached_tokens)
        metrics.request_prompt_tokens.observe(num_prompt_tokens)
        metrics.params_n.observe(len(choices))
        if max_tokens is not None:
            metrics.params_max_tokens.observe(max_tokens)

    def tokens(self, index: int, count: int) -> None:
        """`count` new tokens of a choice; where several come at once, they share the time since the last ones."""
        now = time.perf_counter()
        choice, metrics = self._choices[index], self._metrics
        metrics.generation_tokens.inc(count)
        if choice.num_tokens == 0:
            choice.first = choice.last = now
            metrics.first_token.observe(now - self._began)
            gaps = count - 1
        else:
            gaps = count
        for _ in range(gaps):
            metrics.between_tokens.observe((now - choice.last) / gaps)
        choice.last = now
        choice.num_tokens += count

    def ended(self, index: int, terminal: text_pb2.TextTerminal) -> None:
        """A choice's terminal message has come."""
        choice = self._choices[index]
        reason = NAME_BY_REASON.get(terminal.reason, "error")
        if reason == "error" and not choice.accepted:
            self._refused = terminal.error.code
        else:
            self._end(choice, reason)

    def refuse(self, code: str) -> None:
        """The request never started."""
        self._refused = code

    def close(self) -> None:
        """Nobody waits any more: what has not ended was given up, by the client or because another choice failed.

        In a request that was refused, only what had been accepted counts. A second call changes nothing.
        """
        if self._closed:
            return
        self._closed = True
        for choice in self._choices:
            if not choice.reason and (choice.accepted or not self._refused):
                self._end(choice, "abort")
        reasons = [choice.reason for choice in self._choices if choice.reason]
        num_output_tokens = sum(choice.num_tokens for choice in self._choices)
        failed = self._refused or ("error" if "error" in reasons else "")
        self.span.set(
            {
                "gen_ai.response.id": self._request_id,
                "gen_ai.response.finish_reasons": reasons,
                "gen_ai.usage.input_tokens": self._num_prompt_tokens,
                "gen_ai.usage.output_tokens": num_output_tokens,
                "gen_ai.usage.cache_read.input_tokens": self._num_cached_tokens,
            }
        )
        self.span.end(error=failed)
        log.info(
            "request finished",
            extra=fields(
                request_id=self._request_id,
                finish_reason=self._refused or ",".join(dict.fromkeys(reasons)),
                prompt_tokens=self._num_prompt_tokens,
                output_tokens=num_output_tokens,
                seconds=round(time.perf_counter() - self._began, 4),
            ),
        )

    def _end(self, choice: _Choice, reason: str) -> None:
        choice.reason = reason
        metrics = self._metrics
        metrics.finished[reason].inc()
        metrics.latency.observe(time.perf_counter() - self._began)
        metrics.request_generation_tokens.observe(choice.num_tokens)
        if choice.num_tokens > 1:
            metrics.per_output_token.observe((choice.last - choice.first) / (choice.num_tokens - 1))
