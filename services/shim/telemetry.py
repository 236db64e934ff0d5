"""Records one request that generates, as its client sees it: metrics, the shim's span, a log line."""

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
    """State of one choice. Times are of `time.perf_counter`, in seconds."""

    first: float = 0.0  # when the first token arrived
    last: float = 0.0  # when the latest token arrived
    num_tokens: int = 0
    accepted: bool = False
    reason: str = ""  # finish reason, empty while the choice is open


class RequestTelemetry:
    """Records one HTTP request. The methods must be called in the order of the events, `close` last.

    An `index` is that of a choice among all choices of the request. `key_name`: of the API key; empty: it has none.
    """

    def __init__(self, request_id: str, metrics: ModelMetrics, span: Span, key_name: str = "") -> None:
        self.span = span
        self._key = {"key": key_name} if key_name else {}
        self._request_id = request_id
        self._metrics = metrics
        self._began = time.perf_counter()
        self._choices: list[_Choice] = []
        self._num_prompt_tokens = 0
        self._num_cached_tokens = 0
        self._ignored: tuple[str, ...] = ()
        self._refusal = ""
        self._closed = False

    def submitted(self, num_choices: int) -> None:
        self._choices = [_Choice() for _ in range(num_choices)]

    def accepted(
        self, indices: Iterable[int], max_tokens: int | None, num_prompt_tokens: int, num_cached_tokens: int
    ) -> None:
        """Records that the engine accepted the prompt of these choices. Call it once per prompt.

        `max_tokens`: the request's; None: not set.
        """
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

    def ignored(self, keywords: Iterable[str]) -> None:
        """Records the keywords of the request's schema that have no effect, with their paths."""
        self._ignored = self._ignored or tuple(keywords)

    def tokens(self, index: int, count: int) -> None:
        """Records `count` new tokens of a choice. The time since the previous tokens is divided equally among them.

        For the first tokens, it records the time since this object was made, and 0 between those tokens.
        """
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
        """Records a choice's terminal message. An error of a choice that was not accepted is the request's refusal."""
        choice = self._choices[index]
        reason = NAME_BY_REASON.get(terminal.reason, "error")
        if reason == "error" and not choice.accepted:
            self._refusal = terminal.error.code
        else:
            self._end(choice, reason)

    def refused(self, code: str) -> None:
        """Records that the request was refused before a submit. `code` is a TandemError's, such as UNAVAILABLE."""
        self._refusal = code

    def close(self) -> None:
        """Counts open choices as aborted, ends the span and writes the log line. A second call changes nothing.

        A choice is still open, for example, if the client disconnected or another choice failed. In a request that was
        refused, choices that were not accepted are not counted.
        """
        if self._closed:
            return
        self._closed = True
        for choice in self._choices:
            if not choice.reason and (choice.accepted or not self._refusal):
                self._end(choice, "abort")
        self._metrics.ignored(self._ignored)
        reasons = [choice.reason for choice in self._choices if choice.reason]
        num_output_tokens = sum(choice.num_tokens for choice in self._choices)
        failed = self._refusal or ("error" if "error" in reasons else "")
        self.span.set(
            {
                "gen_ai.response.id": self._request_id,
                "gen_ai.response.finish_reasons": reasons,
                "gen_ai.usage.input_tokens": self._num_prompt_tokens,
                "gen_ai.usage.output_tokens": num_output_tokens,
                "gen_ai.usage.cache_read.input_tokens": self._num_cached_tokens,
                **{f"tandem.{name}": value for name, value in self._key.items()},
            }
        )
        self.span.end(error=failed)
        log.info(
            "request finished",
            extra=fields(
                request_id=self._request_id,
                finish_reason=self._refusal or ",".join(dict.fromkeys(reasons)),
                prompt_tokens=self._num_prompt_tokens,
                output_tokens=num_output_tokens,
                seconds=round(time.perf_counter() - self._began, 4),
                **self._key,
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
