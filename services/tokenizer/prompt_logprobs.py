"""Adds the text of their tokens to logprobs of a prompt, and the places of the prompt's tokens in its text."""

from services.rpc.columns import pack_u32, unpack_u32
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2
from services.tokenizer.vocabulary import Vocabulary


class PromptLogprobTexts:
    """For the prompt of one request. `lead`: the prompt's text, if the answer has it; empty: it does not."""

    def __init__(self, vocabulary: Vocabulary, prompt_token_ids: list[int], lead: str) -> None:
        self._vocabulary = vocabulary
        self._prompt = prompt_token_ids
        self._lead = lead.encode()
        self._num_placed = 0  # tokens, and where they end in the lead:
        self._num_bytes = 0
        self._num_characters = 0

    def of(self, scored: pb.PromptLogprobs, handle: int) -> text_pb2.TextPromptLogprobs:
        """Returns the caller's message, with its `handle`."""
        distinct = sorted(set(unpack_u32(scored.token_ids)))
        text = text_pb2.TextPromptLogprobs(
            logprobs=scored, token_ids=pack_u32(distinct), tokens=map(self._vocabulary.token_bytes, distinct)
        )
        text.logprobs.handle = handle
        if self._lead:
            end = scored.start_index + len(unpack_u32(scored.ranks))
            self._offsets(scored.start_index)
            text.text_offsets = pack_u32(self._offsets(end))
        return text

    def _offsets(self, end: int) -> list[int]:
        """Returns how many characters of the lead come before each further token up to `end`. A token that the text
        does not show, such as one that marks its beginning, takes none of them."""
        offsets = []
        for token_id in self._prompt[self._num_placed : end]:
            offsets.append(self._num_characters - self._is_within_character)
            token = self._vocabulary.token_bytes(token_id)
            if self._num_bytes == 0 and not self._lead.startswith(token):
                token = token.removeprefix(b" ")  # the text of a SentencePiece tokenizer begins without it
            if self._lead.startswith(token, self._num_bytes):
                self._num_characters += sum(byte & 0xC0 != 0x80 for byte in token)
                self._num_bytes += len(token)
        self._num_placed = max(self._num_placed, end)
        return offsets

    @property
    def _is_within_character(self) -> bool:
        """Whether the last token ends with a part of a character, which counts with the token that completes it."""
        return self._num_bytes < len(self._lead) and self._lead[self._num_bytes] & 0xC0 == 0x80
