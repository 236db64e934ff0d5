"""Every field of docs/api.md is sent once: it has its effect, changes nothing, or is refused by name.

The fields and their kinds come from the tables that the page is made of. A supported field without an entry in
ALL_EFFECTS fails.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.shim.apis.all import APIS
from services.shim.apis.fields import kind_of
from tests.checkpoints import make_qwen3
from tests.e2e.api import MAX_LEN, MODEL, Json, error_of
from tests.e2e.field_effects import BARE, EFFECTS, plain
from tests.e2e.harness import Server
from tests.e2e.structured_effects import STRUCTURED_EFFECTS
from tests.e2e.tool_effects import TOOL_EFFECTS

ALL_EFFECTS = EFFECTS | TOOL_EFFECTS | STRUCTURED_EFFECTS
FIELDS = [
    pytest.param(api.path.path, name, kind_of(field), id=f"{api.operation}-{name}")
    for api in APIS
    for name, field in api.request.model_fields.items()
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = make_qwen3(tmp_path_factory.mktemp("model"), max_position_embeddings=MAX_LEN)
    flags = ("--scheduling-policy=priority", "--trust-request-chat-template")
    with Server(str(path), "--dtype=float32", f"--served-model-name={MODEL}", *flags) as server:
        yield server


def of_kind(kind: str) -> Any:
    return pytest.mark.parametrize(("path", "name"), [p.values[:2] for p in FIELDS if p.values[2] == kind])


# Values of no-ops that are not the default. A field that has only its default is sent with that.
NO_OPS: Json = {
    "user": "me", "session_id": "s", "metadata": {"a": "b"}, "service_tier": "default", "prompt_cache_key": "k",
    "prompt_cache_retention": "24h", "prompt_cache_options": {"mode": "auto"}, "safety_identifier": "id",
    "modalities": ["text"],
    "prediction": {"type": "content", "content": "Hello"}, "guided_decoding_backend": "xgrammar",
}  # fmt: skip


@of_kind("supported")
def test_a_supported_field_has_its_effect(server: Server, path: str, name: str) -> None:
    ALL_EFFECTS[name](server, path)


@of_kind("no-op")
def test_a_no_op_changes_nothing(server: Server, path: str, name: str) -> None:
    (field,) = [api.request.model_fields[name] for api in APIS if api.path.path == path]
    value = NO_OPS.get(name, field.default)
    assert value is not None
    assert plain(server, path, **{name: value}) == plain(server, path)


@of_kind("refused")
def test_a_refused_field_is_named(server: Server, path: str, name: str) -> None:
    """Each of these values asks for something; the default, which does not, passes."""
    (field,) = [api.request.model_fields[name] for api in APIS if api.path.path == path]
    for value in (True, "more", {"a": 1}, [{"a": 1}]):
        error = error_of(server.post(path, {**BARE[path], name: value}), 400)
        assert error["param"] == name and f"{name} is not supported" in error["message"]
    assert plain(server, path, **{name: field.default}) == plain(server, path)


def test_the_page_lists_exactly_these_fields() -> None:
    page = (Path(__file__).parents[2] / "docs/api.md").read_text()
    listed = {line.split("`")[1] for line in page.splitlines() if line.startswith("| `") and "` | " in line}
    assert {param.values[1] for param in FIELDS} <= listed
    assert ALL_EFFECTS.keys() == {param.values[1] for param in FIELDS if param.values[2] == "supported"}
