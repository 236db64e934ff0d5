"""How much text an encoding needs: the most text per token, and cuts of a text that is to be truncated.

A cut changes no token that is kept. For byte-level and byte-fallback BPE, without a normalizer or with NFC, this holds
at a space between two words, if no token of the vocabulary has a letter or digit and then a space: no merge goes over
that place, and the usual split patterns begin anew there. (A pattern that counts characters would not.)
"""

import re
from collections.abc import Iterable
from typing import Any

UNBOUNDED_CHARACTERS = 128  # per token of max_model_len: longer texts are refused, whatever their tokens may be
NFC_CHARACTERS = 4  # the most that become one (Unicode Standard Annex 15, section 3: the largest factor of NFD)
CUT_WINDOW = 2**16  # characters that are searched for a place to cut
_PLACE = re.compile(r"[A-Za-z0-9](?= [A-Za-z0-9])")
_SPLITTERS = frozenset({"ByteLevel", "Metaspace", "Digits"})  # these drop no character


def max_token_characters(config: dict[str, Any], tokens: set[str], byte_characters: Iterable[str]) -> int | None:
    """Returns an upper bound of characters of text per token; None: unknown, as where a normalizer, a splitter or an
    added token takes away text of any length. `config`: tokenizer.json; `tokens`: the whole vocabulary;
    `byte_characters`: the alphabet of byte-level BPE."""
    model: dict[str, Any] = config.get("model") or {}
    added: list[dict[str, Any]] = config.get("added_tokens") or []
    strips = any(token.get(name) for token in added for name in ("lstrip", "rstrip", "single_word"))
    splitters = _splitters(config.get("pre_tokenizer"))
    unusual = any(model.get(name) for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"))
    is_nfc = config.get("normalizer") == {"type": "NFC"}
    if (config.get("normalizer") and not is_nfc) or model.get("type") != "BPE" or unusual or strips:
        return None
    if not all(map(_keeps_text, splitters)):
        return None
    if any(splitter.get("type") == "ByteLevel" for splitter in splitters):
        has_all_bytes = tokens.issuperset(byte_characters)
    else:
        has_all_bytes = bool(model.get("byte_fallback")) and tokens.issuperset(f"<0x{byte:02X}>" for byte in range(256))
    if not has_all_bytes:
        return None
    return max(len(token.encode()) for token in tokens) * (NFC_CHARACTERS if is_nfc else 1)


def may_cut(token_texts: Iterable[bytes]) -> bool:
    """Returns whether a text may be cut before a space: no token has a letter or digit and then a space."""
    return not any(re.search(rb"[A-Za-z0-9] ", text) for text in token_texts)


def cut(text: str, num_characters: int, *, drop_end: bool) -> str:
    """Returns at least the last `num_characters` of a text, or with `drop_end` the first ones, cut before a space that
    is near them; without such a place, the whole text."""
    if len(text) <= num_characters:
        return text
    if drop_end:
        found = _PLACE.search(text, max(0, num_characters - 1), num_characters + CUT_WINDOW)
        return text[: found.end()] if found else text
    last = len(text) - num_characters
    found = _PLACE.search(text, max(0, last - CUT_WINDOW), last)
    return text[found.end() :] if found else text


def _splitters(config: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Returns the pre-tokenizers of a possibly nested sequence."""
    if config is None:
        return []
    if config.get("type") == "Sequence":
        return [splitter for part in config.get("pretokenizers", []) for splitter in _splitters(part)]
    return [config]


def _keeps_text(splitter: dict[str, Any]) -> bool:
    return splitter.get("type") in _SPLITTERS or (
        splitter.get("type") == "Split" and splitter.get("behavior") != "Removed"
    )
