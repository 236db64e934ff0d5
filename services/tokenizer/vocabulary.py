"""The model's tokenizer.json: encodes text, and gives each token's bytes."""

import hashlib
import json
from pathlib import Path
from typing import Any

from tokenizers import Encoding, Tokenizer

from services.errors import Fatal
from services.rpc.errors import invalid
from services.tokenizer.control_tokens import control_tokens
from services.tokenizer.plain_model import plain_model
from services.tokenizer.text_length import max_token_characters, may_cut
from services.tokenizer.truncation import PromptLimits, TooManyTokensError, truncated

SHORT_TEXT = 2000  # characters; longer texts are encoded with the GIL released


def _byte_alphabet() -> dict[str, int]:
    """Returns the byte for each character of byte-level BPE's alphabet (GPT-2, bytes_to_unicode)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    alphabet = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in printable]
    return alphabet | {chr(256 + index): byte for index, byte in enumerate(others)}


class Vocabulary:
    def __init__(self, path: Path) -> None:
        """Reads tokenizer.json in the model directory `path`. Raises Fatal when it cannot be read.

        `digest` is its SHA-256 in hex. `max_token_characters`: at most so many characters of text per token;
        None: unknown (services/tokenizer/text_length.py). `plain_model`: the tokenizer's model, or where that writes
        control tokens, one that does not (`has_other_model`). `normalizes`: the tokenizer changes text.
        """
        file = path / "tokenizer.json"
        try:
            content = file.read_bytes()
            self.tokenizer: Tokenizer = Tokenizer.from_buffer(content)
        except Exception as error:  # tokenizers raises bare Exception
            raise Fatal(f"cannot read {file}: {error}") from error
        # As in transformers: the truncation and padding set for training must not change prompts.
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.digest = hashlib.sha256(content).hexdigest()
        config, alphabet, tokens = json.loads(content), _byte_alphabet(), self.tokenizer.get_vocab()
        self._alphabet = alphabet if "ByteLevel" in json.dumps(config.get("decoder")) else None
        self._added = {index: str(token) for index, token in self._added_tokens().items()}
        self.max_token_characters = max_token_characters(config, set(tokens), alphabet)
        self.normalizes = _normalizes(config.get("normalizer"))
        controls = (token.text for token in control_tokens(self.tokenizer.get_added_tokens_decoder().values()))
        self.plain_model, self.has_other_model = plain_model(self.tokenizer.model, config, controls)
        self._may_cut = self.max_token_characters is not None and may_cut(map(self.token_bytes, tokens.values()))

    def _added_tokens(self) -> dict[int, Any]:
        return {index: token.content for index, token in self.tokenizer.get_added_tokens_decoder().items()}

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Returns the token ids of a text; `add_special_tokens` adds, for example, a beginning-of-sequence token. Takes
        about 1 ms per 1,000 tokens, for texts of more than SHORT_TEXT characters with the GIL released."""
        return list(encoding_of(self.tokenizer, text, add_special_tokens).ids)

    def encode_prompt(self, text: str, limits: PromptLimits, *, add_special_tokens: bool) -> list[int]:
        """Returns the token ids of a text within `limits`; special tokens that this adds stay, as in transformers.
        Raises TooManyTokensError."""
        return kept(encoding_of(self.tokenizer, text, add_special_tokens), limits)

    def needed_characters(self, longest: int) -> int | None:
        """Returns how many characters of a text hold `longest` tokens for sure: a part with so many has the same ids
        as the whole text, shortened. None: no part of a text is enough."""
        if not self._may_cut or self.max_token_characters is None:
            return None
        return longest * self.max_token_characters

    def decode(self, token_ids: list[int], skip_special_tokens: bool) -> str:
        """Returns the text of token ids; with more than a few, the GIL is released. Raises TandemError
        (INVALID_ARGUMENT) for an id without a token."""
        for token_id in set(token_ids):
            if self.tokenizer.id_to_token(token_id) is None:
                raise invalid(f"token_ids: {token_id} is not in the vocabulary", "token_ids")
        if len(token_ids) <= SHORT_TEXT:
            return str(self.tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens))
        return str(self.tokenizer.decode_batch([token_ids], skip_special_tokens=skip_special_tokens)[0])

    def token_bytes(self, token_id: int) -> bytes:
        """Returns the bytes of one token, possibly a part of a character. Empty for an id without a token."""
        if token_id in self._added:
            return self._added[token_id].encode()
        token = self.tokenizer.id_to_token(token_id)
        if token is None:
            return b""
        if self._alphabet is not None:
            known = all(character in self._alphabet for character in token)
            return bytes(map(self._alphabet.__getitem__, token)) if known else token.encode()
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes([int(token[3:5], 16)])
        return str(token).replace("▁", " ").encode()


def encoding_of(tokenizer: Tokenizer, text: str, add_special_tokens: bool) -> Encoding:
    """Returns an encoding without usable offsets. `Tokenizer.encode` holds the GIL all the time, the batch methods
    do not; but on the event loop, with a short text, waiting for the GIL would cost more than it frees."""
    if len(text) <= SHORT_TEXT:
        return tokenizer.encode(text, add_special_tokens=add_special_tokens)
    return tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0]


def kept(encoding: Encoding, limits: PromptLimits) -> list[int]:
    """Returns the ids of an encoding, as Vocabulary.encode_prompt. Those of a refused one are not read: that
    would hold the GIL."""
    longest, drop_end = limits.longest, limits.drop_end
    if longest is None and len(encoding) >= limits.refused_from:
        raise TooManyTokensError(len(encoding))
    ids: list[int] = encoding.ids
    excess = 0 if longest is None else len(ids) - longest
    if excess > 0 and any(encoding.special_tokens_mask):
        of_text = [index for index, is_added in enumerate(encoding.special_tokens_mask) if not is_added]
        dropped = frozenset(of_text[max(0, len(of_text) - excess) :] if drop_end else of_text[:excess])
        ids = [token_id for index, token_id in enumerate(ids) if index not in dropped]
    return truncated(ids, longest, drop_end=drop_end)


def _normalizes(normalizer: dict[str, Any] | None) -> bool:
    """Returns whether a tokenizer.json's normalizer may change text."""
    if normalizer is not None and normalizer.get("type") == "Sequence":
        return any(map(_normalizes, normalizer["normalizers"]))
    return normalizer is not None
