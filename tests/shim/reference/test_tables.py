"""The tables about routes and fields: complete, and their words are the schema's numbers."""

import pytest

from services.shim.apis.all import APIS
from services.shim.apis.chat_batch.schema import ChatBatchRequest
from services.shim.apis.fields import kind_of
from services.shim.apis.request import GenerationRequest
from services.shim.apis.tokenize.schema import (
    DETOKENIZE_FORM,
    TOKENIZE_CHAT_FORM,
    TOKENIZE_FORM,
    DetokenizeRequest,
    TokenizeChatRequest,
    TokenizeRequest,
)
from services.shim.apis.tokens.schema import TOKENS_FORM, TokensRequest
from services.shim.reference.tables import FieldRow, routes, sections
from services.shim.routes import PATHS


def rows() -> dict[tuple[str, str], FieldRow]:
    """By the section's title and the field's name."""
    return {(section.title, row.name): row for section in sections() for row in section.rows}


SHARED, CHAT, TEXT = "Fields of every request", "Fields of `/v1/chat/completions`", "Fields of `/v1/completions`"
BATCH, TOKENS = "Fields of `/v1/chat/completions/batch`, beside those of chats", "Fields of `/inference/v1/generate`"
SAMPLING = f"{TOKENS}, in `sampling_params`"
TOKENIZE_TEXT, TOKENIZE_CHAT = "Fields of `/tokenize` for text", "Fields of `/tokenize` for chats"
DETOKENIZE = "Fields of `/detokenize`"
MODELS: dict[str, type[GenerationRequest]] = {
    SHARED: GenerationRequest,
    CHAT: APIS[0].request,
    TEXT: APIS[1].request,
    BATCH: ChatBatchRequest,
    TOKENS: TokensRequest,
    SAMPLING: TokensRequest,
    TOKENIZE_TEXT: TokenizeRequest,
    TOKENIZE_CHAT: TokenizeChatRequest,
    DETOKENIZE: DetokenizeRequest,
}
FORMS = {
    TOKENS: TOKENS_FORM.names | {"sampling_params"},
    SAMPLING: TOKENS_FORM.inner_names,
    TOKENIZE_TEXT: TOKENIZE_FORM.names,
    TOKENIZE_CHAT: TOKENIZE_CHAT_FORM.names,
    DETOKENIZE: DETOKENIZE_FORM.names,
}


def test_every_field_is_in_its_section() -> None:
    assert [section.title for section in sections()] == list(MODELS)
    shared = set(GenerationRequest.model_fields)
    assert {name for title, name in rows() if title == SHARED} == shared
    for api, title in zip(APIS, (CHAT, TEXT), strict=True):
        own = {name for found, name in rows() if found == title}
        assert own | shared == set(api.request.model_fields)
    for title, names in FORMS.items():
        assert {name for found, name in rows() if found == title} == names
    assert {name for found, name in rows() if found == BATCH} == {
        "messages", "stream", "n", "tools", "functions", "add_generation_prompt", "echo", "prompt_logprobs"
    }  # fmt: skip
    assert (TEXT, "max_tokens") in rows(), "its default differs"
    assert (CHAT, "temperature") not in rows()


def test_supported_fields_come_first() -> None:
    order = ["supported", "no-op", "refused"]
    for section in sections():
        kinds = [order.index(row.kind) for row in section.rows]
        assert kinds == sorted(kinds) and ({0, 2} <= set(kinds) or section.title in FORMS)


def test_kinds_and_descriptions_are_those_of_the_declarations() -> None:
    for (title, name), row in rows().items():
        if name == TOKENS_FORM.inner:
            assert (row.kind, row.description) == ("supported", TOKENS_FORM.about_inner)
            continue
        field = MODELS[title].model_fields[name]
        assert (row.kind, row.description) == (kind_of(field), field.description)
        assert row.values and row.description.endswith((".", "`"))


@pytest.mark.parametrize(
    ("title", "name", "values"),
    [
        (SHARED, "n", "integer, at least 1; default 1"),
        (SHARED, "temperature", "number, 0 to 2"),
        (SHARED, "top_p", "number, above 0, at most 1"),
        (SHARED, "top_k", "integer, -1 to 2^31 - 1"),
        (SHARED, "seed", "integer, -2^63 to 2^63 - 1"),
        (SHARED, "priority", "integer, -2^31 to 2^31 - 1; default 0"),
        (SHARED, "repetition_penalty", "number, above 0, at most 10,000"),
        (SHARED, "stop", "string, 1 to 1,024 characters or list of string, at most 64 items"),
        (SHARED, "truncation_side", '"left", "right"'),
        (SHARED, "stream", "boolean; default false"),
        (SHARED, "stream_options", "object"),
        (CHAT, "echo", "boolean; default false"),
        (SHARED, "best_of", "1; default 1"),
        (SHARED, "prompt_logprobs", "integer, at least -1"),
        (SHARED, "vllm_xargs", "object, at most 0 entries"),
        (CHAT, "messages", "list of object, at least 1 items"),
        (CHAT, "tool_choice", '"none", "auto", "required" or object; default "auto"'),
        (SHARED, "response_format", "object"),
        (SHARED, "guided_json", "string, 1 to 1,048,576 characters or object"),
        (CHAT, "modalities", 'list of "text", at most 1 items; default ["text"]'),
        (TEXT, "max_tokens", "integer, 0 to 2^31 - 1; default 16"),
        (TEXT, "suffix", "string"),
        (BATCH, "n", "1; default 1"),
        (TOKENS, "sampling_params", "object"),
        (SAMPLING, "top_p", "number, above 0, at most 1"),
        (DETOKENIZE, "tokens", "list of integer, at most 1,048,576 items"),
    ],
)
def test_values_in_words(title: str, name: str, values: str) -> None:
    assert rows()[title, name].values == values


def test_routes() -> None:
    found = routes()
    names = sorted(route for route, _, _ in found)
    assert names == sorted(f"{one.method} {one.path.replace(':path', '')}" for one in PATHS)
    keys = {route: key for route, _, key in found}
    assert (keys["POST /v1/completions"], keys["POST /reset_prefix_cache"], keys["GET /health"]) == (
        "yes",
        "yes; that of `--admin-api-key`, if there is one",
        "no",
    )
    assert all(summary.endswith(".") for _, summary, _ in found)
