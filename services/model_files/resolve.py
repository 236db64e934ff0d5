"""Maps a model's name to a local directory: the bundled demo, the directory itself, or a download from the hub."""

import re
from collections.abc import Callable
from pathlib import Path

import demo
from services.errors import Fatal
from services.options.common import DEMO_MODEL

CONFIG_FILES = ["*.json", "*.jinja", "*.txt"]
WEIGHT_FILES = "*.safetensors"
_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?")


def resolve(
    model: str, revision: str | None, *, weights: bool, check: Callable[[Path], None] = lambda path: None
) -> Path:
    """Returns the directory with the model's files. Downloads a model of the hub; `weights`: also its weight files.

    `revision`: branch, tag or commit in the hub; None: the default branch. `check` gets the directory before the first
    weights are downloaded, when only the other files are there, and raises for a model that cannot be served.
    Raises Fatal if the model cannot be found or downloaded, and for a local directory without config.json or with a
    revision. huggingface_hub reads `HF_ENDPOINT`, `HF_TOKEN`, `HF_HOME` and `HF_HUB_OFFLINE`.
    """
    path = demo.CHECKPOINT if model == DEMO_MODEL else Path(model).expanduser()
    if path.is_dir():
        if revision is not None:
            raise Fatal(f"--revision is for repositories of the hub, but {model} is a local directory")
        if not (path / "config.json").is_file():
            raise Fatal(f"{path} has no config.json: it is not a model directory")
        return path
    if not _HUB_ID.fullmatch(model):
        raise Fatal(f"there is no model directory {model}")
    path = _download(model, revision, CONFIG_FILES)
    if not weights:
        return path
    if not any(path.glob(WEIGHT_FILES)):
        check(path)
    return _download(model, path.name, WEIGHT_FILES)  # the name is the commit: its weights, if the branch moves on


def _download(model: str, revision: str | None, patterns: str | list[str]) -> Path:
    # Imported here: it takes half a second, and a local model does not need it.
    from huggingface_hub import snapshot_download

    # Version 1 of huggingface_hub raises HTTPError of httpx, version 2 of httpx2.
    from huggingface_hub.errors import HFValidationError, HTTPError  # type: ignore[attr-defined]

    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=patterns))
    except (HTTPError, HFValidationError, OSError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = " ".join(lines[:2])  # status and reason; hints and URLs follow
        raise Fatal(f"{model} is neither a directory nor could it be fetched from the hub: {reason}") from error
