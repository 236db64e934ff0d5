"""Frequencies and factors equal those of transformers' functions."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from services.worker.errors import ModelError
from services.worker.models.rope import ReadRope, read_rope, rope_tables, table_bytes
from services.worker.models.settings import Settings

HEAD_DIM, POSITIONS = 80, 512
LLAMA_3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
YARN = {"factor": 4.0, "original_max_position_embeddings": 128}
LONG = {
    "original_max_position_embeddings": 128,
    "short_factor": [1 + index / 100 for index in range(40)],
    "long_factor": [2 + index / 10 for index in range(40)],
}


def read(parameters: dict[str, Any], max_model_len: int | None = None, **options: Any) -> ReadRope:
    config = {"max_position_embeddings": POSITIONS, "rope_parameters": {"rope_theta": 5000.0, **parameters}}
    return read_rope(Settings(config, max_model_len), HEAD_DIM, **options)


@pytest.mark.parametrize(
    ("parameters", "length"),
    [
        ({"rope_type": "linear", "factor": 2.5}, 1280),
        ({"rope_type": "linear", "factor": 2.5, "partial_rotary_factor": 0.25}, 1280),
        ({"rope_type": "llama3", **LLAMA_3}, POSITIONS),
        ({"rope_type": "yarn", **YARN}, POSITIONS),
        ({"rope_type": "yarn", **YARN, "beta_fast": 16, "beta_slow": 2, "truncate": False}, POSITIONS),
        ({"rope_type": "yarn", **YARN, "mscale": 1.0, "mscale_all_dim": 0.5}, POSITIONS),
        ({"rope_type": "yarn", **YARN, "attention_factor": 1.5}, POSITIONS),
        ({"rope_type": "yarn", **YARN, "factor": 16.0}, 2048),
        ({"rope_type": "longrope", **LONG}, POSITIONS),
        ({"rope_type": "longrope", **LONG, "factor": 3.0}, POSITIONS),
        ({"rope_type": "longrope", **LONG, "attention_factor": 1.25}, POSITIONS),
    ],
)
def test_frequencies_are_those_of_transformers(parameters: dict[str, Any], length: int) -> None:
    found = read(parameters)
    values = {"rope_theta": 5000.0, **parameters}
    config = LlamaConfig(head_dim=HEAD_DIM, max_position_embeddings=POSITIONS, rope_parameters=values)
    frequencies, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, None)
    assert torch.equal(torch.tensor(found.rope.frequencies), frequencies)
    assert found.rope.factor == factor and found.max_length == length


def test_dynamic_is_fixed_for_the_longest_request() -> None:
    """As vLLM's DynamicNTKScalingRotaryEmbedding; transformers' function for a sequence of that length."""
    found = read({"rope_type": "dynamic", "factor": 2.0})
    config = LlamaConfig(
        head_dim=HEAD_DIM,
        max_position_embeddings=POSITIONS,
        rope_parameters={"rope_theta": 5000.0, "rope_type": "dynamic", "factor": 2.0},
    )
    frequencies, _ = ROPE_INIT_FUNCTIONS["dynamic"](config, None, seq_len=2 * POSITIONS)
    torch.testing.assert_close(torch.tensor(found.rope.frequencies), frequencies)
    assert found.max_length == found.default_length == 2 * POSITIONS


def test_longrope_takes_the_factors_of_the_longest_request() -> None:
    short, long = read({"rope_type": "longrope", **LONG}, 128), read({"rope_type": "longrope", **LONG}, 129)
    assert short.rope == read({"rope_type": "longrope", **LONG}).rope != long.rope
    assert short.default_length == 128 and short.max_length == POSITIONS


def test_queries_grow_beyond_the_original_length() -> None:
    rope = read({"rope_type": "yarn", **YARN, "llama_4_scaling_beta": 0.1}, queries_grow=True).rope
    queries, keys = rope_tables(rope, 300, torch.device("cpu"))
    growth = torch.tensor([1 + 0.1 * torch.log(torch.tensor(1.0 + position // 128)) for position in range(300)])
    torch.testing.assert_close(queries, keys * growth[:, None])
    assert torch.equal(queries[:128], keys[:128]) and not torch.equal(queries[128:], keys[128:])


def test_tables_are_cosines_then_sines() -> None:
    rope = read({"partial_rotary_factor": 0.5, "rope_type": "default"}, share=1.0).rope
    queries, keys = rope_tables(rope, 9, torch.device("cpu"))
    assert queries is keys and keys.shape == (9, 40)
    angles = torch.outer(torch.arange(9.0), torch.tensor(rope.frequencies))
    assert torch.equal(keys, torch.cat((angles.cos(), angles.sin()), dim=1))
    assert keys.nbytes == table_bytes(rope, 9)


def test_long_tables_are_computed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    rope = read({"rope_type": "yarn", **YARN, "llama_4_scaling_beta": 0.1}, queries_grow=True).rope
    whole = rope_tables(rope, 500, torch.device("cpu"))
    monkeypatch.setattr("services.worker.models.rope.ROWS", 64)
    pieces = rope_tables(rope, 500, torch.device("cpu"))
    assert all(map(torch.equal, pieces, whole))
    assert sum(table.nbytes for table in whole) == table_bytes(rope, 500)


def test_an_original_length_beside_the_parameters_goes_before_theirs() -> None:
    """As transformers' standardize_rope_params has it."""
    parameters = {"rope_theta": 5000.0, "rope_type": "yarn", **YARN}
    config = {"max_position_embeddings": POSITIONS, "original_max_position_embeddings": 64}
    found = read_rope(Settings({**config, "rope_parameters": parameters}), HEAD_DIM)
    assert found == read({**parameters, "original_max_position_embeddings": 64}) != read(parameters)


def test_a_model_may_say_that_requests_can_be_longer() -> None:
    found = read_rope(Settings({"max_position_embeddings": 64, "model_max_length": 1024}), HEAD_DIM)
    assert (found.max_length, found.default_length) == (1024, 64)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"rope_type": "llama3"}, "rope_parameters.factor is missing"),
        ({"rope_type": "longrope", **LONG, "short_factor": [1.0]}, "short_factor must be a list of 40 numbers"),
        ({"rope_type": "longrope", **LONG, "short_factor": ["a"] * 40}, "short_factor is 'a'"),
        ({"rope_type": "yarn", **YARN, "factor": -1}, "rope_parameters.factor is -1"),
        ({"partial_rotary_factor": 0.0125}, "1 of head_dim 80 would turn"),
        ({"partial_rotary_factor": 1.5}, "120 of head_dim 80 would turn"),
        ({"rope_type": "yarn", **YARN, "partial_rotary_factor": 0.5, "llama_4_scaling_beta": 0.1}, "llama_4_scaling"),
        ({"rope_type": "yarn", **YARN, "rope_theta": 1}, "no rotary embedding can be computed from rope_parameters"),
        ({"rope_type": "yarn", **YARN, "factor": 1e200}, "rope_parameters.factor is not between 1e-30 and 1e"),
        ({"rope_type": "yarn", **YARN, "beta_fast": 1e-320}, "rope_parameters.beta_fast is not between"),
        ({"rope_type": "linear", "factor": 10**400}, "rope_parameters.factor is not between"),
        ({"rope_type": "linear", "factor": 1e-30, "rope_theta": 1e-30}, "frequencies that are not finite"),
        ({"rope_type": "longrope", **LONG, "original_max_position_embeddings": 0.5}, "no rotary embedding can be"),
    ],
)
def test_what_cannot_be_used_is_refused_by_its_key(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read(parameters, share=1.0, queries_grow=True)


@pytest.mark.parametrize(
    ("parameters", "key"),
    [
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"rope_type": "yarn", **YARN, "llama_4_scaling_beta": 0.1}, "llama_4_scaling_beta"),
    ],
)
def test_what_transformers_ignores_in_a_family_is_refused(parameters: dict[str, Any], key: str) -> None:
    with pytest.raises(ModelError, match=f"{key} is not supported for this architecture"):
        read(parameters)


@pytest.mark.parametrize(
    ("config", "theta", "factor", "sliding"),
    [
        ({}, 7000.0, 1.0, 300.0),
        ({"rope_theta": 500.0, "rope_local_base_freq": 20.0}, 500.0, 1.0, 20.0),
        (
            {"rope_theta": 500.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
            500.0,
            8.0,
            300.0,
        ),
        (
            {
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "rope_theta": 500.0, "factor": 8.0},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
                }
            },
            500.0,
            8.0,
            20.0,
        ),
        ({"rope_parameters": {"full_attention": {"rope_theta": 500.0}}}, 500.0, 1.0, 300.0),
    ],
)
def test_layers_with_a_window_have_a_rope_of_their_own(
    config: dict[str, Any], theta: float, factor: float, sliding: float
) -> None:
    """In transformers 5's spelling, and in that of older versions: scaling is for full attention only."""
    settings = Settings({"max_position_embeddings": POSITIONS, **config})
    found = read_rope(settings, HEAD_DIM, theta=7000.0, layer_type="full_attention")
    own = read_rope(settings, HEAD_DIM, theta=300.0, layer_type="sliding_attention", theta_key="rope_local_base_freq")
    powers = torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM
    assert found.rope.frequencies == pytest.approx((theta**-powers / factor).tolist())
    assert own.rope.frequencies == pytest.approx((sliding**-powers).tolist())


def test_parameters_of_a_type_of_layers_must_be_an_object() -> None:
    settings = Settings(
        {"max_position_embeddings": 8, "rope_parameters": {"full_attention": 7, "sliding_attention": {}}}
    )
    with pytest.raises(ModelError, match="rope_parameters.full_attention is 7, but must be an object"):
        read_rope(settings, HEAD_DIM, layer_type="full_attention")
