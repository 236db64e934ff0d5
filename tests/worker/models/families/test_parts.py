import pytest

from services.worker.errors import ModelError
from services.worker.models.families.parts import attention, heads, refuse_window, rope_of
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


@pytest.mark.parametrize(("max_model_len", "refused"), [(None, True), (101, True), (100, False), (8, False)])
def test_a_window_that_a_request_can_leave_is_refused(max_model_len: int | None, refused: bool) -> None:
    settings = Settings({**SIZES, "sliding_window": 100}, max_model_len)
    rope = rope_of(settings)
    if refused:
        with pytest.raises(ModelError, match="sliding_window = 100"):
            refuse_window(settings, rope)
    else:
        refuse_window(settings, rope)
