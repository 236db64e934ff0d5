"""Small tokenizers with the tokens of each model family for text in the middle."""

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from tokenizers import AddedToken

from services.tokenizer.vocabulary import Vocabulary
from tests.tokenizer.tokenizer_kinds import KINDS

# Kind of tokenizer, and the prompt as the model's card or code writes it.
FAMILIES: dict[str, tuple[str, str]] = {
    "qwen": ("byte_level", "<|fim_prefix|>{prefix}<|fim_suffix|>{suffix}<|fim_middle|>"),
    "starcoder": ("byte_level", "<fim_prefix>{prefix}<fim_suffix>{suffix}<fim_middle>"),
    "deepseek": ("byte_level", "<｜fim▁begin｜>{prefix}<｜fim▁hole｜>{suffix}<｜fim▁end｜>"),
    "seed": ("byte_level", "<[fim-suffix]>{suffix}<[fim-prefix]>{prefix}<[fim-middle]>"),
    "mistral-tekken": ("byte_level", "[SUFFIX]{suffix}[PREFIX]{prefix}"),
    "codestral": ("llama_old", "[SUFFIX]{suffix}[PREFIX]{prefix}"),
    "codellama": ("llama_old", "▁<PRE>{prefix}▁<SUF>{suffix}▁<MID>"),
    "codellama-metaspace": ("llama_first", "▁<PRE>{prefix}▁<SUF>{suffix}▁<MID>"),
}


def markers_of(family: str) -> list[str]:
    """Returns the texts of a family's tokens in the order of its prompt."""
    parts = FAMILIES[family][1].replace("{prefix}", "\0").replace("{suffix}", "\0").split("\0")
    return [part for part in parts if part]


@cache
def vocabulary(family: str) -> Vocabulary:
    tokenizer = KINDS[FAMILIES[family][0]]()
    texts = ["<|end|>", *markers_of(family)]
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=True) for text in texts])
    path = Path(mkdtemp())
    tokenizer.save(str(path / "tokenizer.json"))
    return Vocabulary(path)
