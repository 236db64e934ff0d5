"""A tokenizer's model (its vocabulary and merges) that makes no control token's id out of plain text."""

import json
import re
import secrets
from collections.abc import Iterable, Iterator, Set
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import Model

NAME_LENGTH = 20
BYTE = re.compile("<0x[0-9A-F]{2}>")


def unguessable() -> str:
    """Returns letters that no text holds, but by a chance of 1 in 10^28."""
    return "".join(secrets.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(NAME_LENGTH))


def plain_model(model: Model, config: dict[str, Any], texts: Iterable[str]) -> tuple[Model, bool]:
    """Returns (the model, False) if it cannot write the control tokens' `texts`, else (a copy that cannot, True).

    `config`: the model's tokenizer.json. In the copy, the texts are renamed and keep their ids; merges that need them
    are gone. (Unigram models have `</s>` as a piece, and merges may lead to an added token.) The id of unknown
    characters stays, and so do the tokens of single bytes.
    """
    known = {text for text in texts if model.token_to_id(text) is not None and not BYTE.fullmatch(text)}
    if not known or not _writes_any(config["model"], known):
        return model, False
    names = {text: unguessable() for text in known}
    renamed = {**config, "added_tokens": [], "post_processor": None, "model": _renamed(config["model"], names)}
    return Tokenizer.from_str(json.dumps(renamed)).model, True


def _writes_any(model: dict[str, Any], known: Set[str]) -> bool:
    if model["type"] != "BPE" or model.get("ignore_merges"):
        return True
    return any(result in known for _, _, result in _merges(model))


def _merges(model: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yields (left, right, result) of each merge."""
    prefix = model.get("continuing_subword_prefix") or ""
    for merge in model["merges"]:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        yield left, right, left + right.removeprefix(prefix)


def _renamed(model: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    renamed = dict(model)
    if isinstance(model["vocab"], list):  # Unigram: (piece, score), by id
        renamed["vocab"] = [[names.get(piece, piece), score] for piece, score in model["vocab"]]
    else:
        renamed["vocab"] = {names.get(token, token): token_id for token, token_id in model["vocab"].items()}
    if isinstance(model.get("unk_token"), str):
        renamed["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    if "merges" in model:
        renamed["merges"] = [list(merge[:2]) for merge in _merges(model) if not names.keys() & set(merge)]
    return renamed
