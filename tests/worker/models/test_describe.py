"""config.json becomes a description; what cannot be served is refused by the name of its key."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from services.worker.errors import ModelError
from services.worker.models.describe import FAMILIES, describe
from services.worker.models.settings import TRAITS
from tests.worker.checkpoint_files import change_config, load
from tests.worker.models.transformers_versions import skip_if_older

TINY = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM.*Qwen3ForCausalLM"),
        ({"rope_parameters": {"rope_type": "proportional", "rope_theta": 1e4}}, "rope_type 'proportional'"),
        ({"rope_scaling": {"type": "linear"}}, "rope_parameters.factor is missing"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "rope_parameters for each type of layer"),
        ({"use_sliding_window": True, "sliding_window": 0}, "sliding_window is 0, but must be an integer above 0"),
        ({"hidden_act": "xielu"}, "hidden_act = 'xielu'"),
        ({"num_key_value_heads": 3}, "4 attention heads cannot share 3"),
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"dtype": "int4"}, "dtype 'int4'"),
        ({"vocab_size": -5}, "vocab_size is -5, but must be an integer above 0"),
        ({"num_key_value_heads": 0}, "num_key_value_heads is 0"),
        ({"head_dim": 33}, "33 of head_dim 33 would turn, but the rotary embedding needs an even number"),
        ({"rope_parameters": 5}, "rope_parameters is 5, but must be an object"),
        ({"rope_parameters": {"rope_theta": "much"}}, "rope_theta is 'much', but must be a number"),
        ({"rms_norm_eps": True}, "rms_norm_eps is True"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"attention_bias": 1}, "attention_bias is 1, but must be true or false"),
        ({"architectures": 5}, "architectures 5 are not supported"),
        ({"architectures": [[]]}, r"architectures \[\[\]\] are not supported"),
    ],
)
def test_what_the_decoder_cannot_compute_is_refused_by_name(path: Path, changes: dict[str, Any], message: str) -> None:
    change_config(path, **changes)
    with pytest.raises(ModelError, match=message):
        load(path)


def test_old_and_new_spellings_of_rope_and_dtype_mean_the_same(path: Path) -> None:
    new = describe(json.loads((path / "config.json").read_text()))
    old = json.loads((path / "config.json").read_text())
    old["rope_theta"] = old.pop("rope_parameters")["rope_theta"]
    old["torch_dtype"] = old.pop("dtype")
    assert describe(old) == new


MIXED = {**TINY, "num_experts_per_tok": 2, "intermediate_size": 96}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "Glm4MoeForCausalLM": ({"n_routed_experts": 8, "n_group": 8, "topk_group": 2, "head_dim": 16}, "n_group is 8 of 8"),
    "Qwen3MoeForCausalLM": ({"num_experts": 8, "num_local_experts": 6}, "num_experts is 8, but num_local_experts is 6"),
    "Gemma3ForCausalLM": ({"rope_parameters": {"full_attention": 5}}, "rope_parameters.full_attention is 5"),
    "MixtralForCausalLM": ({"num_local_experts": 4, "scoring_func": "sigmoid"}, "scoring_func = 'sigmoid'"),
    "MiniMaxM2ForCausalLM": ({"num_local_experts": 4, "scoring_func": "softmax"}, "scoring_func = 'softmax'"),
}


@pytest.mark.parametrize("architecture", REFUSED)
def test_what_a_family_does_not_compute_is_refused_by_name(architecture: str) -> None:
    config, message = REFUSED[architecture]
    with pytest.raises(ModelError, match=message):
        describe({**MIXED, **config, "architectures": [architecture]}, 128)


@pytest.mark.parametrize("listed", [0, "0", [True], [-1], [0.0]])
def test_dense_layers_that_are_no_layers_are_refused(listed: Any) -> None:
    config = {**MIXED, "num_experts": 8, "mlp_only_layers": listed, "architectures": ["Qwen3MoeForCausalLM"]}
    with pytest.raises(ModelError, match="mlp_only_layers is .*, but must be a list of layers from 0 on"):
        describe(config, 128)


# What says nothing, in an architecture, beside other keys: configurations that are equal.
EQUAL: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "windows from the first layer on": (
        "Qwen2ForCausalLM",
        {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 0},
        {"use_sliding_window": True, "sliding_window": 9, "layer_types": ["sliding_attention"] * 2},
    ),
    "listed windows": (
        "Qwen3ForCausalLM",
        {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
        {
            "use_sliding_window": True, "sliding_window": 9, "max_window_layers": None,
            "layer_types": ["full_attention", "sliding_attention"],
        },
    ),
    "a window that is not used": ("Qwen3MoeForCausalLM", {}, {"use_sliding_window": False, "sliding_window": 0}),
    "no pattern beside a list": (
        "Gemma3ForCausalLM",
        {"sliding_window": 9, "sliding_window_pattern": 2},
        {
            "sliding_window": 9, "sliding_window_pattern": None,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "both names of the experts": (
        "Qwen3MoeForCausalLM", {"num_experts": 8}, {"num_experts": 8, "num_local_experts": 8},
    ),
    "another name of the experts": ("GptOssForCausalLM", {"num_local_experts": 4}, {"num_experts": 4}),
}  # fmt: skip


@pytest.mark.parametrize("name", EQUAL)
def test_what_transformers_takes_is_taken(name: str) -> None:
    architecture, one, other = EQUAL[name]
    base = {**MIXED, "architectures": [architecture]}
    assert describe({**base, **one}, 128) == describe({**base, **other}, 128)


def test_a_mixture_may_have_no_shared_expert() -> None:
    config = {**MIXED, "n_routed_experts": 8, "head_dim": 16, "architectures": ["Glm4MoeForCausalLM"]}
    shared = [layer.mlp.shared for layer in describe({**config, "n_shared_experts": 0}, 128).layers[1:]]  # type: ignore[union-attr]
    assert shared == [None]
    with pytest.raises(ModelError, match="first_k_dense_replace is -1, but must be an integer of at least 0"):
        describe({**config, "first_k_dense_replace": -1}, 128)


# transformers would round 4096 / 96 down.
WITHOUT_DEFAULT = {"Glm4MoeForCausalLM": {"head_dim": 128}}


@pytest.mark.parametrize("architecture", FAMILIES)
@pytest.mark.parametrize("given", [{}, TINY], ids=["empty", "minimal"])
def test_omitted_keys_have_the_defaults_of_transformers(architecture: str, given: dict[str, Any]) -> None:
    """The configuration that transformers writes from the same keys gives the same description."""
    family = FAMILIES[architecture]
    skip_if_older(family.model_type)
    given = {**given, **WITHOUT_DEFAULT.get(architecture, {})}
    written = transformers.AutoConfig.for_model(family.model_type, **given).to_dict()
    length = 2048  # below all default windows and original lengths
    found = describe({**given, "architectures": [architecture]}, length)
    assert found == describe({**written, "architectures": [architecture], "dtype": None}, length)


@pytest.mark.parametrize("architecture", FAMILIES)
@pytest.mark.parametrize("key", TRAITS)
def test_a_trait_changes_the_description_or_is_refused_by_name(architecture: str, key: str) -> None:
    config = {**TINY, **BOTH_KINDS.get(architecture, {}), "architectures": [architecture]}
    before = describe(config, 2048)
    for value in OTHER.get(key, (True, 7, 0.5)):
        try:
            after = describe({**config, key: value}, 2048)
        except ModelError as error:
            assert key in str(error) or key in BY_WHAT_IT_HOLDS, error
            continue
        if after == before:
            assert key in HARMLESS.get(architecture, ()), f"{key} = {value!r} is accepted and ignored"


# Values that mean something for a key, where True, 7 and 0.5 do not.
OTHER: dict[str, tuple[Any, ...]] = {
    "is_causal": (False,),
    "layer_types": (["full_attention", "sliding_attention"],),
    "no_rope_layers": ([1, 0], [0, 0]),
    "quantization_config": ({"quant_method": "awq"},),
    "rope_parameters": ({"rope_type": "linear", "factor": 2.0}, {"rope_type": "none"}),
    "rope_scaling": ({"rope_type": "linear", "factor": 2.0}, {"rope_type": "none"}),
    "sliding_window": (16,),
}
# Keys with which two layers are of both kinds.
BOTH_KINDS = {"Gemma3ForCausalLM": {"sliding_window_pattern": 2}}
BY_WHAT_IT_HOLDS = ("rope_parameters", "rope_scaling")
# Keys that say nothing without another one: a window that is not used, and what these families have anyway.
HARMLESS = {
    "Qwen2ForCausalLM": ("sliding_window", "use_sliding_window"),
    "Qwen3ForCausalLM": ("sliding_window", "use_sliding_window"),
    "SmolLM3ForCausalLM": ("sliding_window", "use_sliding_window"),
    "Qwen3MoeForCausalLM": ("sliding_window",),
    "SeedOssForCausalLM": ("attention_bias",),
    "Glm4MoeForCausalLM": ("partial_rotary_factor",),
    "GptOssForCausalLM": ("attention_bias", "swiglu_limit"),
    "MiniMaxM2ForCausalLM": ("use_qk_norm", "use_routing_bias"),
    "Starcoder2ForCausalLM": ("use_bias",),
}
