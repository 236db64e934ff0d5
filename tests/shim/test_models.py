"""The cards of /v1/models have OpenAI's fields and vLLM's."""

from services.shim.models import ModelCard, ModelPermission, model_card


def test_a_card() -> None:
    card = model_card("served", "/models/it", 4096, 1_700_000_000)
    (permission,) = card.pop("permission")  # type: ignore[misc]
    assert card == {
        "id": "served",
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "tandem",
        "root": "/models/it",
        "parent": None,
        "max_model_len": 4096,
    }
    assert permission.keys() == ModelPermission.__annotations__.keys()
    assert card.keys() | {"permission"} == ModelCard.__annotations__.keys()
    assert permission["allow_sampling"] and permission["allow_logprobs"] and not permission["allow_fine_tuning"]
    assert (permission["object"], permission["created"]) == ("model_permission", 1_700_000_000)


def test_permissions_of_different_models_have_different_ids() -> None:
    ids = {model_card(name, "/models/it", 1, 1)["permission"][0]["id"] for name in ("a", "b")}
    assert len(ids) == 2
