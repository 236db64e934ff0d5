"""Sampling defaults from generation_config.json and its overrides, the line that names them, and errors by key."""

from typing import Any

import pytest

from engine_core.worker_messages import SamplingDefaults
from services.worker.errors import ModelError
from services.worker.generation_config import GenerationConfig


def test_defaults_that_are_missing_or_null_are_openais() -> None:
    found = GenerationConfig({"temperature": 0.6, "top_p": None, "max_new_tokens": 9}, {}).sampling_defaults
    assert found == SamplingDefaults(temperature=0.6, max_tokens=9)
    assert GenerationConfig().sampling_defaults == SamplingDefaults()


@pytest.mark.parametrize(
    ("overrides", "temperature"),
    [({}, 0.0), ({"temperature": 0.5}, 0.5), ({"do_sample": True}, 0.7), ({"do_sample": None}, 0.7),
     ({"temperature": 0.5, "do_sample": False}, 0.0), ({"top_k": 3}, 0.0)],
)  # fmt: skip
def test_a_greedy_model_may_be_made_to_sample(overrides: dict[str, Any], temperature: float) -> None:
    config = GenerationConfig({"do_sample": False, "temperature": 0.7}, overrides)
    assert config.sampling_defaults.temperature == temperature


def test_an_override_of_null_removes_a_default() -> None:
    assert GenerationConfig({"top_k": 20}, {"top_k": None}).sampling_defaults.top_k == 0


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"temprature": 1}, "--override-generation-config: temprature is not supported, only temperature, top_p,"),
        ({"temperature": "hot"}, '--override-generation-config: temperature is "hot", but must be a number'),
        ({"temperature": True}, "--override-generation-config: temperature is true, but must be a number"),
        (
            {"temperature": 2.5},
            "--override-generation-config: temperature is 2.5, but must be at least 0 and at most 2",
        ),
        ({"top_p": 0}, "--override-generation-config: top_p is 0, but must be above 0 and at most 1"),
        ({"top_p": float("nan")}, "--override-generation-config: top_p is nan, but must be above 0 and at most 1"),
        ({"top_k": 1.5}, "--override-generation-config: top_k is 1.5, but must be an integer"),
        ({"top_k": -2}, "--override-generation-config: top_k is -2, but must be at least 0"),
        ({"max_new_tokens": 0}, "--override-generation-config: max_new_tokens is 0, but must be at least 1"),
        ({"do_sample": 1}, "--override-generation-config: do_sample is 1, but must be true or false"),
    ],
)
def test_an_override_that_cannot_be_used_is_refused_with_its_key(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError) as refused:
        GenerationConfig({}, overrides)
    assert str(refused.value).startswith(message)


def test_every_end_of_a_range_may_be_an_override() -> None:
    values = {"temperature": 0, "top_p": 1, "top_k": -1, "min_p": 0, "repetition_penalty": 1e4, "max_new_tokens": 1}
    assert GenerationConfig({}, values).sampling_defaults.top_k == -1


@pytest.mark.parametrize("value", ["hot", [1], True])
def test_a_default_that_is_no_number_is_refused(value: Any) -> None:
    with pytest.raises(ModelError, match=r"^generation_config.json: top_p is .*, but must be a number$"):
        _ = GenerationConfig({"top_p": value}).sampling_defaults


def test_a_default_far_from_any_range_is_refused() -> None:
    with pytest.raises(ModelError, match=r"^generation_config.json: sampling_defaults: a value is not from -1 to"):
        _ = GenerationConfig({"temperature": 1e9}).sampling_defaults


@pytest.mark.parametrize(
    ("values", "overrides", "line"),
    [
        ({}, {}, ""),
        ({"temperature": 1.0, "top_p": 1.0, "eos_token_id": 2, "do_sample": True}, {}, ""),
        (
            {"temperature": 0.6, "top_k": 20, "max_new_tokens": 512}, {},
            "sampling defaults of generation_config.json: temperature 0.6, top_k 20, max_tokens 512;"
            " --generation-config vllm uses the OpenAI API's defaults",
        ),
        ({}, {"min_p": 0.05}, "sampling defaults of --override-generation-config: min_p 0.05"),
        (
            {"temperature": 0.6}, {"top_p": 0.9},
            "sampling defaults of generation_config.json and --override-generation-config: temperature 0.6, top_p 0.9;"
            " --generation-config vllm uses the OpenAI API's defaults",
        ),
        ({"temperature": 0.6}, {"temperature": None}, ""),
    ],
)  # fmt: skip
def test_one_line_names_the_defaults_that_are_not_openais(
    values: dict[str, Any], overrides: dict[str, Any], line: str
) -> None:
    assert GenerationConfig(values, overrides).summary() == line
