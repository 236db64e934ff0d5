"""Token ids to text, one at a time, never taking back a character.

A character cut between two tokens waits for its rest. The text so far is a pure function of the ids so far, so that a
resumed answer goes on exactly where it was.

Only a window of tokens is decoded: those that were released last, then those that wait. It is not `DecodeStream` of
tokenizers, which raises where a byte-fallback decoder changes its mind about earlier bytes, and releases the prompt
where that ends within a character.
"""

import functools

from tokenizers import Tokenizer

CONTEXT_TOKENS = 6  # of the prompt, for decoders that treat the beginning of a text differently
CUT_TOKENS = 3  # a character has at most four bytes, so at most three tokens are the beginning of one
MAX_WAITING_TOKENS = 64  # so many without one whole character are garbage: they are released as they are
DECODED_TOKENS = 65536  # remembered
REPLACEMENT = "\ufffd"


class Detokenizer:
    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: list[int], *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._settled, self._waiting = self._split(prompt_token_ids)
        self._settled_text = self._decode(self._settled)
        self._told = self._decode(self._settled + self._waiting)  # of the prompt, or released already

    def push(self, token_id: int) -> str:
        """The text that this token completes, often empty in the middle of a character."""
        self._waiting.append(token_id)
        text = self._decode(self._settled + self._waiting)
        complete = len(text) > len(self._settled_text) and not text.endswith(REPLACEMENT)
        if complete or len(self._waiting) >= MAX_WAITING_TOKENS:
            return self._release(text)
        if self._skip and self._is_special(token_id):
            self._waiting.pop()  # it never adds anything, and an answer may be full of them
        return ""

    @property
    def waits(self) -> bool:
        """Some tokens have not become text yet."""
        return bool(self._waiting)

    def alone(self, token_id: int) -> str:
        """The text of this token by itself."""
        return self._decode([token_id])

    def flush(self) -> str:
        """What never became a whole character, as replacement characters, as a full decode has it."""
        return self._release(self._decode(self._settled + self._waiting)) if self._waiting else ""

    def _release(self, text: str) -> str:
        told = self._told if text.startswith(self._told) else self._settled_text  # the cut character became whole
        self._settled, self._waiting = self._waiting, []
        self._settled_text = self._told = self._decode(self._settled)
        return text[len(told) :]

    def _split(self, prompt: list[int]) -> tuple[list[int], list[int]]:
        """The end of the prompt: tokens of whole characters only, and the beginning of one that is cut."""
        for end in range(len(prompt), max(0, len(prompt) - CUT_TOKENS) - 1, -1):
            for begin in range(end - CONTEXT_TOKENS, end - CONTEXT_TOKENS - CUT_TOKENS - 1, -1):
                context = prompt[max(0, begin) : end]
                if REPLACEMENT not in self._decode(context):
                    return context, prompt[end:]
        return prompt[-CONTEXT_TOKENS:], []

    def _is_special(self, token_id: int) -> bool:
        return not self._decode([token_id]) and bool(self._tokenizer.decode([token_id], skip_special_tokens=False))

    def _decode(self, token_ids: list[int]) -> str:
        if len(token_ids) == 1:
            return _decode_one(self._tokenizer, token_ids[0], self._skip)
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=self._skip))


@functools.lru_cache(maxsize=DECODED_TOKENS)
def _decode_one(tokenizer: Tokenizer, token_id: int, skip_special_tokens: bool) -> str:
    """Half of what is decoded is one token, and often the same."""
    return str(tokenizer.decode([token_id], skip_special_tokens=skip_special_tokens))
