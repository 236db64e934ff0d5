"""What one choice's tokens release as text: detokenizer, then stop strings, fed one token after the other.

A pure function of the tokens: no clock, no randomness, never a retraction. A resume replays the tokens that are there
and drops what they release.
"""

from dataclasses import dataclass
from typing import NamedTuple

from tokenizers import Tokenizer

from services.tokenizer.detokenize import REPLACEMENT, Detokenizer
from services.tokenizer.stop import StopMatcher


@dataclass(frozen=True)
class OutputRules:
    """From the request. `stop_token_ids` are all tokens that end the answer, end-of-text tokens included."""

    stop: list[str]
    include_stop_str_in_output: bool
    skip_special_tokens: bool
    stop_token_ids: frozenset[int]
    min_tokens: int


class Released(NamedTuple):
    """`num_tokens` of the pushed tokens belong to the answer; fewer than were pushed only when a stop string was hit.

    `offsets` are the characters of the answer's text before each of them.
    """

    num_tokens: int
    content: str
    offsets: list[int]


class ChoiceOutput:
    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: list[int], rules: OutputRules) -> None:
        self._rules = rules
        self._detokenizer = Detokenizer(tokenizer, prompt_token_ids, skip_special_tokens=rules.skip_special_tokens)
        self._matcher = StopMatcher(rules.stop, include_in_output=rules.include_stop_str_in_output)
        self.num_tokens = 0
        self._num_characters = 0  # of the text so far, what is held back among them

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the answer."""
        return self._matcher.hit

    def push(self, token_ids: list[int]) -> Released:
        """Takes tokens up to the one that completes a stop string."""
        content = ""
        offsets = []
        for token_id in token_ids:
            self.num_tokens += 1
            cut = self._detokenizer.waits
            text = "" if self._is_silent(token_id) else self._detokenizer.push(token_id)
            offsets.append(self._num_characters + (self._belated(text, token_id) if cut else 0))
            self._num_characters += len(text)
            content += self._matcher.push(text, may_end=self._may_end)
            if self._matcher.hit is not None:
                break
        return Released(len(offsets), content, offsets)

    def flush(self) -> str:
        """The answer is over without a stop string: everything that was held back."""
        return self._matcher.push(self._detokenizer.flush(), may_end=self._may_end) + self._matcher.flush()

    @property
    def _may_end(self) -> bool:
        return self.num_tokens > self._rules.min_tokens

    def _is_silent(self, token_id: int) -> bool:
        """The token that ends the answer."""
        ends = self._may_end and token_id in self._rules.stop_token_ids
        return ends and not self._rules.include_stop_str_in_output

    def _belated(self, text: str, token_id: int) -> int:
        """How many characters of the released text are those of tokens before this one, which never became whole."""
        own = self._detokenizer.alone(token_id)
        return len(text) - len(own) if own and REPLACEMENT not in own and text.endswith(own) else 0
