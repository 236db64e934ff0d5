"""One choice's tokens to pieces of text: each token passes the detokenizer, the stop strings, then the format's parser.

Released text is final: it is sent to the client and never changes. Which text a token releases depends on the prompt
and the tokens so far alone, not on a clock or on how steps batch them. So a resume pushes the tokens that the client
has, and drops the text that they release.
"""

from dataclasses import dataclass
from typing import NamedTuple

from tokenizers import Tokenizer

from services.rpc.pieces import Piece, of_content
from services.tokenizer.answer_divider import AnswerDivider
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

    num_tokens: int  # of the pushed tokens, those up to and with the one that ends the choice
    pieces: list[Piece]  # text that can be sent to the client now
    offsets: list[int]  # per token, where its text starts in the text of the choice, in characters


class ChoiceOutput:
    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: list[int],
        rules: OutputRules,
        divider: AnswerDivider | None = None,
    ) -> None:
        """`divider`: finds reasoning and tool calls; None: the whole text is content."""
        self._rules = rules
        self._divider = divider
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

    @property
    def is_over(self) -> bool:
        """Whether the pushed tokens end the choice: by a stop string, or by the only call that it may have."""
        return self._matcher.hit is not None or (self._divider is not None and self._divider.is_over)

    @property
    def num_reasoning_tokens(self) -> int:
        return self._divider.num_reasoning_tokens if self._divider is not None else 0

    @property
    def num_calls(self) -> int:
        return self._divider.num_calls if self._divider is not None else 0

    @property
    def num_broken_calls(self) -> int:
        return self._divider.num_broken_calls if self._divider is not None else 0

    def push(self, token_ids: list[int]) -> Released:
        """Adds tokens, up to and with the one that ends the choice; returns what they release."""
        if self._divider is not None:
            return self._push_divided(token_ids, self._divider)
        content = ""
        offsets: list[int] = []
        for token_id in token_ids:
            text = self._text_of(token_id, offsets)
            content += self._matcher.push(text, may_end=self._may_end)
            if self._matcher.hit is not None:
                break
        return Released(len(offsets), of_content(content), offsets)

    def _push_divided(self, token_ids: list[int], divider: AnswerDivider) -> Released:
        offsets: list[int] = []
        for token_id in token_ids:
            marker = divider.marker_ids.get(token_id)
            before = self._detokenizer.flush() if marker is not None else ""  # no character goes on behind a marker
            self._num_characters += len(before)
            start = self._num_characters
            text = self._text_of(token_id, offsets)
            if marker is not None:
                divider.expect(marker, start, len(text))
            divider.push(self._matcher.push(before + text, may_end=self._may_end))
            if self.is_over:
                break
        return Released(len(offsets), divider.take(), offsets)

    def _text_of(self, token_id: int, offsets: list[int]) -> str:
        """Returns the text that a new token adds, and appends where it starts to `offsets`."""
        self.num_tokens += 1
        had_pending = self._detokenizer.has_pending
        text = "" if self._may_end and token_id in self._hidden else self._detokenizer.push(token_id)
        offsets.append(self._num_characters + (self._num_earlier(text, token_id) if had_pending else 0))
        self._num_characters += len(text)
        return text

    def flush(self, *, stopped: bool = False) -> list[Piece]:
        """Returns the text still held back: an incomplete character, a possible start of a stop string or a marker.

        Call it once, when the choice has ended. `stopped`: with the reason STOP.
        """
        last = ""
        if self._matcher.hit is None:
            last = self._matcher.push(self._detokenizer.flush(), may_end=self._may_end) + self._matcher.flush()
        if self._divider is None:
            return of_content(last)
        self._divider.finish(last, stopped=stopped)
        return self._divider.take()

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
