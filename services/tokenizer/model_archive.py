"""The model's tokenizer files as a zip archive, for gateways that encode and render prompts themselves."""

import hashlib
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from services.rpc.generated import text_pb2

# What transformers reads to make a tokenizer; config.json has the model's type.
NAMES = (
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "config.json",
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
)
TEMPLATE = "chat_template.jinja"  # transformers prefers it to the template in tokenizer_config.json
DATE = (1980, 1, 1, 0, 0, 0)  # of every entry: equal files give equal archives
PIECE_BYTES = 1024 * 1024


@dataclass
class ModelArchive:
    """The archive of the model directory `path`. `template`: the chat template in use; None: the model has none."""

    path: Path
    template: str | None

    @cached_property
    def _content(self) -> bytes:
        written = io.BytesIO()
        with zipfile.ZipFile(written, "w") as archive:
            for name, content in self._files():
                archive.writestr(zipfile.ZipInfo(name, DATE), content, zipfile.ZIP_DEFLATED)
        return written.getvalue()

    def _files(self) -> Iterator[tuple[str, bytes]]:
        for name in NAMES:
            if name == TEMPLATE and self.template is not None:
                yield name, self.template.encode()
            elif (self.path / name).is_file():
                yield name, (self.path / name).read_bytes()

    def pieces(self) -> list[text_pb2.TokenizerPiece]:
        """Returns the archive in pieces of at most PIECE_BYTES. Takes some hundred milliseconds the first time.

        Raises OSError if a file cannot be read."""
        content = self._content
        pieces = [
            text_pb2.TokenizerPiece(data=content[start : start + PIECE_BYTES])
            for start in range(0, len(content), PIECE_BYTES)
        ]
        pieces[-1].sha256 = hashlib.sha256(content).hexdigest()
        return pieces
