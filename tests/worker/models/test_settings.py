import pytest

from services.worker.errors import ModelError
from services.worker.models.settings import Settings


def test_a_default_replaces_an_omitted_key_and_not_a_null() -> None:
    settings = Settings({"given": 3, "null": None}, defaults={"given": 1, "null": 2, "omitted": 4})
    assert (settings.raw("given"), settings.raw("null"), settings.raw("omitted")) == (3, None, 4)
    assert settings.size("null", 5) == 5
    with pytest.raises(ModelError, match="null is missing"):
        settings.size("null")


def test_an_object_that_is_null_is_omitted() -> None:
    """As in transformers: Ministral 3 with rope_parameters null has the parameters that it has without the key."""
    settings = Settings({"null": None, "empty": {}}, defaults={"null": {"a": 1}, "empty": {"a": 1}})
    assert settings.object("null") == {"a": 1} and settings.object("empty") == settings.object("missing") == {}


def test_a_trait_that_was_not_read_is_refused() -> None:
    config = {"num_experts": 8, "logit_scale": 1.0, "clip_qkv": None, "use_bias": False}
    Settings({**config, "num_experts": 1}).refuse_rest()
    with pytest.raises(ModelError, match="num_experts = 8"):
        Settings(config).refuse_rest()
    settings = Settings(config)
    settings.raw("num_experts")
    settings.refuse_rest()


def test_layers_that_all_have_full_attention_are_no_trait() -> None:
    Settings({"layer_types": ["full_attention"] * 3}).refuse_rest()
    for other in (["full_attention", "sliding_attention"], [["full_attention"]], [{}]):
        with pytest.raises(ModelError, match="layer_types"):
            Settings({"layer_types": other}).refuse_rest()
