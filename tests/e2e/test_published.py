"""Three families as users meet them: downloaded from a hub, asked by the openai client, compared with transformers."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from tests import reference
from tests.e2e.harness import Server
from tests.e2e.hub import Hub
from tests.e2e.published import PUBLISHED, Published
from tests.reference import assert_equal_but_for_ties

MAX_TOKENS = 24
MESSAGES = [
    {"role": "system", "content": "Answer in a word."},
    {"role": "user", "content": "Which way is the sea?"},
    {"role": "assistant", "content": "West."},
    {"role": "user", "content": "And the hills?"},
]


@dataclass(frozen=True)
class Served:
    server: Server
    name: str
    path: Path
    model: Published
    tokenizer: PreTrainedTokenizerBase


@pytest.fixture(scope="module", params=list(PUBLISHED))
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    name, folder = request.param, tmp_path_factory.mktemp("hub")
    path = PUBLISHED[name].save(folder / "repository")
    assert len([*path.glob("*.safetensors")]) > 1
    with (
        Hub({name: {"main": path}}) as hub,
        Server(name, "--max-num-seqs=8", "--max-model-len=300", env=hub.environment(folder)) as server,
    ):
        yield Served(server, name, path, PUBLISHED[name], AutoTokenizer.from_pretrained(path))


def test_a_chat_is_transformers_answer(served: Served) -> None:
    """The prompt is that of its own template, with as many BOS tokens as the template writes: one, or none for Phi."""
    expected = served.tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False)
    answer = served.server.openai().chat.completions.create(
        model=served.name, messages=MESSAGES, max_tokens=MAX_TOKENS, temperature=0, logprobs=True,
        extra_body={"return_token_ids": True, "ignore_eos": True},
    )  # fmt: skip
    prompt = answer.prompt_token_ids
    assert prompt == expected
    assert prompt.count(served.tokenizer.bos_token_id) == (0 if served.model.bos is None else 1)
    choice = answer.choices[0]
    (truth,) = reference.generate(served.path, [prompt], MAX_TOKENS)
    assert_equal_but_for_ties(truth, choice.token_ids, [entry.logprob for entry in choice.logprobs.content])
    assert choice.message.content == served.tokenizer.decode(choice.token_ids, skip_special_tokens=True)


def test_a_completion_has_what_the_tokenizer_adds(served: Served) -> None:
    answer = served.server.complete("The hills are", max_tokens=4, temperature=0)
    assert answer["prompt_token_ids"] == served.tokenizer("The hills are").input_ids
    assert (answer["prompt_token_ids"][0] == served.tokenizer.bos_token_id) is (served.model.bos is not None)


def test_each_end_token_ends_an_answer(served: Served) -> None:
    for token in served.model.ends:
        token_id = served.tokenizer.convert_tokens_to_ids(token)
        answer = served.server.openai().chat.completions.create(
            model=served.name, messages=MESSAGES, max_tokens=MAX_TOKENS, logit_bias={str(token_id): 100}
        )
        assert (answer.choices[0].finish_reason, answer.choices[0].message.content) == ("stop", "")
        assert answer.usage.completion_tokens == 1
