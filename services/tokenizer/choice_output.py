"""What one choice's tokens release as text: detokenizer, then stop strings, fed one token after the other.

A pure function of the tokens: no clock, no randomness, never a retraction. A resume replays the tokens that are there
and drops what they release.
"""

from dataclasses import dataclass

from tokenizers import Tokenizer

from services.tokenizer.detokenize import Detokenizer
from services.tokenizer.stop import StopMatcher


@dataclass(frozen=True)
class OutputRules:
    """From the request. `stop_token_ids` are all tokens that end the answer, end-of-text tokens included."""

    stop: list[str]
    include_stop_str_in_output: bool
    skip_special_tokens: bool
    stop_token_ids: frozenset[int]
    min_tokens: int


@dataclass(frozen=True)
class Released:
    """`count` of the pushed tokens belong to the answer; fewer than were pushed only when a stop string was hit."""

    count: int
    content: str


class ChoiceOutput:
    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: list[int], rules: OutputRules) -> None:
        self._rules = rules
        self._detokenizer = Detokenizer(tokenizer, prompt_token_ids, skip_special_tokens=rules.skip_special_tokens)
        self._matcher = StopMatcher(rules.stop, include_in_output=rules.include_stop_str_in_output)
        self.num_tokens = 0

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the answer."""
        return self._matcher.hit

    def push(self, token_ids: list[int]) -> Released:
        """Takes tokens up to the one that completes a stop string."""
        content = ""
        for count, token_id in enumerate(token_ids, start=1):
            content += self._push_one(token_id)
            if self._matcher.hit is not None:
                return Released(count, content)
        return Released(len(token_ids), content)

    def flush(self) -> str:
        """The answer is over without a stop string: everything that was held back."""
        return self._matcher.push(self._detokenizer.flush(), may_end=self._may_end) + self._matcher.flush()

    @property
    def _may_end(self) -> bool:
        return self.num_tokens > self._rules.min_tokens

    def _push_one(self, token_id: int) -> str:
        self.num_tokens += 1
        if self._may_end and token_id in self._rules.stop_token_ids and not self._rules.include_stop_str_in_output:
            return ""
        return self._matcher.push(self._detokenizer.push(token_id), may_end=self._may_end)
