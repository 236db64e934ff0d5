"""config.json becomes a DecoderConfig; settings that the decoder does not support are refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from services.worker.errors import ModelError
from services.worker.models.config import decoder_config
from tests.worker.checkpoint_files import change_config, load


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM.*Qwen3ForCausalLM"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope_type 'yarn'"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_type 'linear'"),
        ({"use_sliding_window": True}, "use_sliding_window = True"),
        ({"attention_bias": True}, "attention_bias = True"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"num_key_value_heads": 3}, "4 attention heads cannot share 3"),
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"dtype": "int4"}, "dtype 'int4'"),
        ({"vocab_size": -5}, "vocab_size is -5, but must be an integer above 0"),
        ({"num_key_value_heads": 0}, "num_key_value_heads is 0"),
        ({"head_dim": 33}, "head_dim is 33, but the rotary embedding needs an even one"),
        ({"rope_parameters": 5}, "rope_parameters is 5, but must be an object"),
        ({"rope_parameters": {"rope_theta": "much"}}, "rope_theta is 'much', but must be a number"),
        ({"rms_norm_eps": True}, "rms_norm_eps is True"),
        ({"architectures": 5}, "architectures 5 are not supported"),
        ({"architectures": [[]]}, r"architectures \[\[\]\] are not supported"),
    ],
)
def test_what_the_decoder_cannot_compute_is_refused_by_name(path: Path, changes: dict[str, Any], message: str) -> None:
    change_config(path, **changes)
    with pytest.raises(ModelError, match=message):
        load(path)


def test_old_and_new_spellings_of_rope_and_dtype_mean_the_same(path: Path) -> None:
    new = decoder_config(json.loads((path / "config.json").read_text()))
    old = json.loads((path / "config.json").read_text())
    old["rope_theta"] = old.pop("rope_parameters")["rope_theta"]
    old["torch_dtype"] = old.pop("dtype")
    assert decoder_config(old) == new
