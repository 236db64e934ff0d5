"""The model's tokenizer.json: encodes text, and gives each token's bytes."""

import hashlib
import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from services.errors import Fatal


def _byte_alphabet() -> dict[str, int]:
    """Returns the byte for each character of byte-level BPE's alphabet (GPT-2, bytes_to_unicode)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    alphabet = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in printable]
    return alphabet | {chr(256 + index): byte for index, byte in enumerate(others)}


class Vocabulary:
    def __init__(self, path: Path) -> None:
        """Reads tokenizer.json in the model directory `path`. Raises Fatal when it cannot be read.

        `digest` is its SHA-256 in hex. `max_token_bytes`: at most so many bytes of UTF-8 per token; None: unknown.
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
        self._alphabet = _byte_alphabet() if "ByteLevel" in json.dumps(json.loads(content).get("decoder")) else None
        # An upper bound of text per token. With a normalizer, which may shorten the text, there is none.
        lengths = [len(token.encode()) for token in self.tokenizer.get_vocab()]
        self.max_token_bytes = max(lengths) if self.tokenizer.normalizer is None else None
        self._added = {index: str(token) for index, token in self._added_tokens().items()}

    def _added_tokens(self) -> dict[int, Any]:
        return {index: token.content for index, token in self.tokenizer.get_added_tokens_decoder().items()}

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Returns the token ids of a text; `add_special_tokens` adds, for example, a beginning-of-sequence token. Takes
        about 1 ms per 1,000 tokens, with the GIL released."""
        return list(self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

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
