import pytest

from services.worker.errors import ModelError
from services.worker.models.description import Layer, Mlp, Norm
from services.worker.models.families.parts import attention, heads, rope_of, sliding_layers, window_of, windowed
from services.worker.models.settings import Settings

SIZES = {
    "hidden_size": 96,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rope_parameters": {"rope_theta": 10_000.0},
}


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, (6, 2, 16)),
        ({"head_dim": 48}, (6, 2, 48)),
        ({"head_dim": None}, (6, 2, 16)),
        ({"num_key_value_heads": None}, (6, 6, 16)),
        ({"hidden_size": 100, "head_dim": 32}, (6, 2, 32)),
    ],
)
def test_head_dim_is_that_of_its_key_or_the_hidden_size_shared(
    change: dict[str, int | None], found: tuple[int, int, int]
) -> None:
    assert heads(Settings({**SIZES, **change})) == found


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_key_value_heads": 4}, "6 attention heads cannot share 4 key-value heads"),
        ({"hidden_size": 100}, "hidden_size 100 is not a multiple of num_attention_heads 6"),
        ({"head_dim": 0}, "head_dim is 0, but must be an integer above 0"),
        ({"head_dim": 10**8}, "head_dim is 100000000, but at most 65536 are supported"),
        ({"num_attention_heads": 10**6, "num_key_value_heads": 1}, "num_attention_heads is 1000000, but at most 65536"),
        ({"hidden_size": 10**30}, "hidden_size is above 2147483647"),
    ],
)
def test_heads_that_do_not_fit_are_refused(change: dict[str, int], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        heads(Settings({**SIZES, **change}))


def test_scores_are_divided_by_the_root_of_head_dim_unless_a_family_says_otherwise() -> None:
    settings = Settings(SIZES)
    rope = rope_of(settings)
    assert attention(settings, rope).scale == 0.25
    assert attention(settings, rope, scale=0.5).scale == 0.5


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [100, None, 100]),
        ({"layer_types": ["sliding_attention", "full_attention", "full_attention"]}, [100, None, None]),
        ({"sliding_window": None}, [None, None, None]),
        ({"sliding_window": None, "layer_types": ["full_attention"] * 3}, [None, None, None]),
    ],
)
def test_layers_have_the_window_that_layer_types_or_the_family_give_them(
    changes: dict[str, object], expected: list[int | None]
) -> None:
    settings = Settings({**SIZES, "num_hidden_layers": 3, "sliding_window": 100, **changes})
    layer = Layer(attention(settings, rope_of(settings)), Mlp(8, "silu"), Norm(1e-6))
    sliding = sliding_layers(settings, window_of(settings), [True, False, True])
    assert [one.attention.window for one in windowed([layer] * 3, sliding, window_of(settings))] == expected


@pytest.mark.parametrize("kinds", ["sliding_attention", ["full_attention"] * 2, ["full_attention", 1, None]])
def test_layer_types_that_do_not_fit_are_refused(kinds: object) -> None:
    settings = Settings({**SIZES, "num_hidden_layers": 3, "layer_types": kinds})
    with pytest.raises(ModelError, match="layer_types must be a list of 3 times 'sliding_attention'"):
        sliding_layers(settings, 100, [True] * 3)


def test_a_window_that_no_size_is_given_for_is_refused() -> None:
    settings = Settings({**SIZES, "num_hidden_layers": 1, "layer_types": ["sliding_attention"]})
    with pytest.raises(ModelError, match="layer_types has 'sliding_attention', but no sliding_window is used"):
        sliding_layers(settings, None, [True])
