"""Which versions of transformers compute a family as its newest ones do, and so can be compared with."""

import pytest
import transformers
from packaging.version import Version

# model_type -> the first version that was tried and agrees; all others agree from the lowest one of pyproject.toml on.
SINCE = {
    "cohere2": "5.10.4",
    "gemma2": "5.8.1",
    "glm4_moe": "5.10.4",
    "gpt_oss": "5.20.0",
    "granitemoe": "5.14.1",
    "olmo3": "5.14.1",
}


def skip_if_older(model_type: str) -> None:
    """Skips the test if the installed transformers computes this family in another way."""
    since = SINCE.get(model_type, "0")
    if Version(transformers.__version__) < Version(since):
        pytest.skip(f"transformers {transformers.__version__} computes {model_type} as {since} does not")
