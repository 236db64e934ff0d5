"""The facts in the model's files that gateways ask for, and that nothing here depends on."""

from pathlib import Path
from typing import Any

from services.errors import Fatal
from services.rpc.generated import common_pb2 as pb
from services.tokenizer.find_template import read_json, special_tokens
from services.tokenizer.vocabulary import Vocabulary


def model_facts(path: Path, vocabulary: Vocabulary) -> pb.ModelInfo:
    """Returns type, architectures and special ids of the model directory `path`; without type and architectures if
    config.json cannot be read, which the worker refuses. Raises Fatal for a tokenizer_config.json that cannot be read.
    """
    config, tokens = _config(path / "config.json"), special_tokens(path)
    architectures = config.get("architectures")
    return pb.ModelInfo(
        model_type=str(config.get("model_type") or ""),
        architectures=map(str, architectures) if isinstance(architectures, list) else (),
        bos_token_id=_id_of(tokens.get("bos_token"), vocabulary),
        pad_token_id=_id_of(tokens.get("pad_token"), vocabulary),
    )


def _config(file: Path) -> dict[str, Any]:
    try:
        return read_json(file)
    except Fatal:
        return {}


def _id_of(token: str | None, vocabulary: Vocabulary) -> int | None:
    return vocabulary.tokenizer.token_to_id(token) if token is not None else None
