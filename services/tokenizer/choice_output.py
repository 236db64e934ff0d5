"""One choice's tokens to pieces of text: each token passes the detokenizer, then the stop strings.

Released text is final: it is sent to the client and never changes. Which text a token releases depends on the prompt
and the tokens so far alone, not on a clock or on how steps batch them. So a resume pushes the tokens that the client
has, and drops the text that they release.
"""

from dataclasses import dataclass
from typing import NamedTuple

from tokenizers import Tokenizer

from services.rpc.pieces import Piece, of_content
from services.tokenizer.detokenize import REPLACEMENT, Detokenizer
from services.tokenizer.stop import StopMatcher


@dataclass(frozen=True)
class OutputRules:
    """A request's fields that decide which tokens become text. `stop_token_ids` include the model's end-of-text tokens,
    unless the request ignores those."""

    stop: list[str]
    include_stop_str_in_output: bool
    skip_special_tokens: bool
    spaces_between_special_tokens: bool
    stop_token_ids: frozenset[int]
    min_tokens: int


class Released(NamedTuple):
    """What one `push` added to the choice."""

    num_tokens: int  # of the pushed tokens, those up to and with the one that completes a stop string
    pieces: list[Piece]  # text that can be sent to the client now
    offsets: list[int]  # per token, where its text starts in the text of the choice, in characters


class ChoiceOutput:
    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: list[int], rules: OutputRules) -> None:
        self._rules = rules
        self._detokenizer = Detokenizer(
            tokenizer,
            prompt_token_ids,
            skip_special_tokens=rules.skip_special_tokens,
            spaces_between_special_tokens=rules.spaces_between_special_tokens,
        )
        self._matcher = StopMatcher(rules.stop, include_in_output=rules.include_stop_str_in_output)
        # The stop tokens that are left out of the text, once they may end the choice.
        self._hidden = frozenset() if rules.include_stop_str_in_output else rules.stop_token_ids
        self.num_tokens = 0
        self._num_characters = 0  # of the text so far, text held back included

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the choice, or None."""
        return self._matcher.hit

    def push(self, token_ids: list[int]) -> Released:
        """Adds tokens, up to and with the one that completes a stop string; returns what they release."""
        content = ""
        offsets = []
        for token_id in token_ids:
            self.num_tokens += 1
            may_end = self._may_end
            had_pending = self._detokenizer.has_pending
            text = "" if may_end and token_id in self._hidden else self._detokenizer.push(token_id)
            offsets.append(self._num_characters + (self._num_earlier(text, token_id) if had_pending else 0))
            self._num_characters += len(text)
            content += self._matcher.push(text, may_end=may_end)
            if self._matcher.hit is not None:
                break
        return Released(len(offsets), of_content(content), offsets)

    def flush(self) -> list[Piece]:
        """Returns the text still held back: an incomplete character, a possible start of a stop string. Call it
        once, when the choice has ended without a stop string."""
        last = self._matcher.push(self._detokenizer.flush(), may_end=self._may_end)
        return of_content(last + self._matcher.flush())

    @property
    def _may_end(self) -> bool:
        """Whether the last token may end the choice: there are more than min_tokens tokens."""
        return self.num_tokens > self._rules.min_tokens

    def _num_earlier(self, text: str, token_id: int) -> int:
        """Returns how many characters at the start of `text` are of earlier tokens with an incomplete character.

        0 if `token_id` completes their character.
        """
        own = self._detokenizer.text_of(token_id)
        return len(text) - len(own) if own and REPLACEMENT not in own and text.endswith(own) else 0
