"""Incremental detokenization: one token id at a time to text that never changes afterwards ("released" text).

A character may be split over several tokens: these are pending until the character is complete. A token's text may
depend on the tokens before it (byte-fallback decoders, leading spaces), but decoding all of them each time would cost
O(n^2). So each push decodes a window: the tokens released last, as context, then the pending ones. vLLM's detokenizer
does the same with prefix_offset and read_offset. `DecodeStream` of tokenizers is not used: it raises where a
byte-fallback decoder revises earlier bytes, and releases prompt text when the prompt ends within a character.
"""

import functools

from tokenizers import Tokenizer

CONTEXT_TOKENS = 6  # of the prompt: some decoders treat the beginning of a text differently
MAX_SPLIT_TOKENS = 3  # UTF-8 has at most four bytes per character, so at most three tokens of an incomplete one
MAX_PENDING_TOKENS = 64  # this many without a complete character are released as replacement characters
DECODE_CACHE_SIZE = 65536  # tokens
REPLACEMENT = "\ufffd"


class Detokenizer:
    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: list[int],
        *,
        skip_special_tokens: bool,
        spaces_between_special_tokens: bool = True,
    ) -> None:
        """Without `spaces_between_special_tokens`, an added token that directly follows another one in the answer has
        its own text only, not the space that some decoders put before it."""
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        spaces = skip_special_tokens or spaces_between_special_tokens
        self._unspaced = {} if spaces else _added_tokens(tokenizer)
        self._last_is_added = False
        self._context, self._pending = self._split(prompt_token_ids)
        self._context_text = self._decode(self._context)
        self._released_text = self._decode(self._context + self._pending)  # of the window; prompt text counts as well

    def push(self, token_id: int) -> str:
        """Adds a token; returns the text that it releases.

        "" in the middle of a character, and for a token without text. After MAX_PENDING_TOKENS, an incomplete character
        is released with replacement characters.
        """
        self._pending.append(token_id)
        text = self._decode(self._context + self._pending)
        complete = len(text) > len(self._context_text) and not text.endswith(REPLACEMENT)
        if complete or len(self._pending) >= MAX_PENDING_TOKENS:
            released = self._release(text)
            return self._without_space(token_id, released) if self._unspaced else released
        self._last_is_added = False
        if self._skip and self._is_special(token_id):
            self._pending.pop()  # it adds no text, and many of them would fill the window
        return ""

    @property
    def has_pending(self) -> bool:
        """Whether tokens wait to be released: an incomplete character, also the prompt's last, or tokens without text.

        Skipped special tokens do not count.
        """
        return bool(self._pending)

    def text_of(self, token_id: int) -> str:
        """Returns the text of one token without its context."""
        return self._decode([token_id])

    def flush(self) -> str:
        """Releases the pending tokens; returns their text, "" without any. Bad bytes become replacement characters."""
        return self._release(self._decode(self._context + self._pending)) if self._pending else ""

    def _release(self, text: str) -> str:
        """Makes the pending tokens the context; returns what of `text`, the decoded window, was not released yet."""
        # Where the prompt ended within a character, that character is now complete, and belongs to the answer.
        released = self._released_text if text.startswith(self._released_text) else self._context_text
        self._context, self._pending = self._pending, []
        self._context_text = self._released_text = self._decode(self._context)
        return text[len(released) :]

    def _without_space(self, token_id: int, released: str) -> str:
        """Returns the token's own text if it and the token before it are added tokens, else `released`."""
        own, follows_added = self._unspaced.get(token_id), self._last_is_added
        self._last_is_added = own is not None
        return own if own is not None and follows_added else released

    def _split(self, prompt: list[int]) -> tuple[list[int], list[int]]:
        """Returns (context, pending), the prompt's last tokens: about CONTEXT_TOKENS of complete characters, then at
        most MAX_SPLIT_TOKENS of an incomplete one. Without such a split: CONTEXT_TOKENS as they are, and none."""
        for end in range(len(prompt), max(0, len(prompt) - MAX_SPLIT_TOKENS) - 1, -1):
            for begin in range(end - CONTEXT_TOKENS, end - CONTEXT_TOKENS - MAX_SPLIT_TOKENS - 1, -1):
                context = prompt[max(0, begin) : end]
                if REPLACEMENT not in self._decode(context):
                    return context, prompt[end:]
        return prompt[-CONTEXT_TOKENS:], []

    def _is_special(self, token_id: int) -> bool:
        """Returns whether the token has text only while special tokens are not skipped."""
        return not self._decode([token_id]) and bool(self._tokenizer.decode([token_id], skip_special_tokens=False))

    def _decode(self, token_ids: list[int]) -> str:
        if len(token_ids) == 1:
            return _decode_one(self._tokenizer, token_ids[0], self._skip)
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=self._skip))


@functools.lru_cache(maxsize=DECODE_CACHE_SIZE)
def _decode_one(tokenizer: Tokenizer, token_id: int, skip_special_tokens: bool) -> str:
    """Returns one token's text, from a cache: half of all decodes are of one token, often the same one."""
    return str(tokenizer.decode([token_id], skip_special_tokens=skip_special_tokens))


@functools.lru_cache(maxsize=2)
def _added_tokens(tokenizer: Tokenizer) -> dict[int, str]:
    """Returns the text of each added token, special or not."""
    return {token_id: str(token.content) for token_id, token in tokenizer.get_added_tokens_decoder().items()}
