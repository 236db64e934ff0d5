"""Prompts for a text in the middle: what stands before it and after it, between the model's own tokens for that.

A format is known by its tokens. Each part is encoded by itself, as the models' own code does it, so that truncation
never drops a marker and no token joins two parts. Control tokens in the parts act, as in any completion.
"""

from dataclasses import dataclass

from tokenizers import Encoding, Tokenizer

from services.rpc.errors import invalid
from services.tokenizer.truncation import PromptLimits, TooManyTokensError
from services.tokenizer.vocabulary import Vocabulary, encoding_of

ALONE = "☺"  # a token of its own before any text, to tokenizers that put a space before a text


@dataclass(frozen=True)
class Format:
    """The texts of the tokens before prefix, suffix and middle. `middle` empty: the prefix, which is last, goes on."""

    prefix: str
    suffix: str
    middle: str
    suffix_first: bool = False

    @property
    def tokens(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.prefix, self.suffix, self.middle)))


FORMATS = (
    # Qwen2.5-Coder and Qwen3-Coder, https://huggingface.co/Qwen/Qwen2.5-Coder-7B; Granite 3.3 and 4,
    # https://huggingface.co/ibm-granite/granite-3.3-8b-base; CodeGemma, https://ai.google.dev/gemma/docs/codegemma
    Format("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    # StarCoder 1 and 2, https://huggingface.co/bigcode/starcoder; Granite Code,
    # https://huggingface.co/ibm-granite/granite-8b-code-base-4k
    Format("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    # DeepSeek-Coder, https://github.com/deepseek-ai/DeepSeek-Coder (code insertion)
    Format("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    # Code Llama, infilling_prompt_tokens in https://github.com/meta-llama/codellama/blob/main/llama/generation.py
    Format("▁<PRE>", "▁<SUF>", "▁<MID>"),
    # Seed-Coder, arXiv 2506.03524, section 3
    Format("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>", suffix_first=True),
    # Codestral, encode_fim in https://github.com/mistralai/mistral-common (tokens/tokenizers/instruct.py)
    Format("[PREFIX]", "[SUFFIX]", "", suffix_first=True),
)


class FillInMiddle:
    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokenizer = vocabulary.tokenizer
        self._format, self._markers = _known(self._tokenizer)
        first = self._tokenizer.encode("a", add_special_tokens=False).ids[:1]
        puts_space = any(vocabulary.token_bytes(token_id).startswith(b" ") for token_id in first)
        # Before a suffix there must be no space that is not in it. Meta's and Mistral's code does the same.
        self._lead = ALONE if puts_space else ""
        self._num_lead = len(self._tokenizer.encode(self._lead, add_special_tokens=False))
        self._before, self._after = _added(self._tokenizer.encode("a", add_special_tokens=True))

    def check(self) -> None:
        """Raises TandemError (INVALID_ARGUMENT) for a model that has no tokens for text in the middle."""
        if self._format is None:
            raise invalid("suffix is not supported: this model has no tokens for text in the middle", "suffix")

    def encode(self, prefix: str, suffix: str, limits: PromptLimits, add_special_tokens: bool) -> list[int]:
        """Returns the token ids of the prompt for what is between `prefix` and `suffix`.

        Within `limits`, tokens far from the middle are dropped: the first ones of the prefix and then the last ones of
        the suffix, or with `drop_end` those of the suffix first. Raises TooManyTokensError, and
        TandemError (INVALID_ARGUMENT) where the markers alone are too long. `check` must have passed.
        """
        assert self._format is not None
        before, after = (self._before, self._after) if add_special_tokens else ([], [])
        start = encoding_of(self._tokenizer, prefix, False)
        end = encoding_of(self._tokenizer, self._lead + suffix, False)
        num_markers = len(before) + len(self._format.tokens) + len(after)
        num_prefix, num_suffix = len(start), len(end) - self._num_lead
        total = num_markers + num_prefix + num_suffix
        if limits.longest is None:
            if total >= limits.refused_from:
                raise TooManyTokensError(total)
        elif total > limits.longest:
            room = limits.longest - num_markers
            if room < 0:
                raise invalid(
                    f"truncate_prompt_tokens leaves {limits.longest} tokens, but those around prompt and suffix are"
                    f" {num_markers}",
                    "truncate_prompt_tokens",
                )
            num_prefix, num_suffix = _shared(room, num_prefix, num_suffix, prefix_first=not limits.drop_end)
        prefix_ids = start.ids[len(start) - num_prefix :]
        suffix_ids = end.ids[self._num_lead : self._num_lead + num_suffix]
        return [*before, *self._joined(prefix_ids, suffix_ids), *after]

    def _joined(self, prefix_ids: list[int], suffix_ids: list[int]) -> list[int]:
        assert self._format is not None
        markers, names = self._markers, self._format
        first = [markers[names.prefix], *prefix_ids]
        second = [markers[names.suffix], *suffix_ids]
        middle = [markers[names.middle]] if names.middle else []
        return [*second, *first, *middle] if names.suffix_first else [*first, *second, *middle]


def _known(tokenizer: Tokenizer) -> tuple[Format | None, dict[str, int]]:
    """Returns the first format whose tokens the tokenizer has, and their ids."""
    for one in FORMATS:
        ids = {text: index for text in one.tokens if (index := tokenizer.token_to_id(text)) is not None}
        if len(ids) == len(one.tokens):
            return one, ids
    return None, {}


def _added(encoding: Encoding) -> tuple[list[int], list[int]]:
    """Returns the special ids that the tokenizer adds before and after a text."""
    mask = encoding.special_tokens_mask
    start = mask.index(0) if 0 in mask else len(mask)
    end = len(mask) - mask[::-1].index(0) if 0 in mask else len(mask)
    return encoding.ids[:start], encoding.ids[end:]


def _shared(room: int, num_prefix: int, num_suffix: int, *, prefix_first: bool) -> tuple[int, int]:
    """Returns how many tokens of prefix and suffix are kept of `room`; `prefix_first`: the prefix loses its own
    before the suffix does."""
    if prefix_first:
        num_suffix = min(num_suffix, room)
        return min(num_prefix, room - num_suffix), num_suffix
    num_prefix = min(num_prefix, room)
    return num_prefix, min(num_suffix, room - num_prefix)
