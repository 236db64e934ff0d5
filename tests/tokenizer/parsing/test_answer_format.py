"""AnswerFormats: what a request's answers are divided by, where they begin, the ids of calls, the budget."""

import json
import threading
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer

import demo
from services.rpc.columns import unpack_u32
from services.rpc.errors import TandemError
from services.rpc.generated import text_pb2
from services.rpc.pieces import CONTENT, REASONING
from services.tokenizer.parsing.answer_format import AnswerFormats, CallIds
from services.tokenizer.parsing.catalog import built_in
from services.tokenizer.vocabulary import Vocabulary
from tests.tokenizer.parsing.drive import function

CATALOG = built_in()
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|start|>", "<|channel|>", "<|message|>", "<|end|>"]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    """The demo's tokenizer with the added tokens of other models."""
    tokenizer = Tokenizer.from_file(str(demo.CHECKPOINT / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, special=False) for text in ("<think>", "</think>")])
    folder: Path = tmp_path_factory.mktemp("model")
    tokenizer.save(str(folder / "tokenizer.json"))
    return Vocabulary(folder)


def spec(*, calls: bool = False, reasoning: bool = True, budget: int | None = None) -> text_pb2.OutputSpec:
    output = text_pb2.OutputSpec(
        separate_reasoning=reasoning,
        tool_choice=text_pb2.TOOL_CHOICE_AUTO if calls else text_pb2.TOOL_CHOICE_NONE,
        tools_json=json.dumps([function("f", a="integer")]).encode() if calls else b"",
    )
    if budget is not None:
        output.thinking_token_budget = budget
    return output


def pieces(vocabulary: Vocabulary, reasoning: str, prompt: str, answer: str) -> list[tuple[int, str]]:
    """Returns the pieces of an answer to a prompt."""
    formats = AnswerFormats(vocabulary, None, CATALOG.reasoning[reasoning])
    form = formats.of_request(spec(), vocabulary.encode(prompt, add_special_tokens=False))
    assert form is not None
    parser, writer = form.parser(0)
    for token_id in vocabulary.encode(answer, add_special_tokens=False):
        marker = form.grammar.marker_ids.get(token_id)
        if marker is None:
            parser.text(vocabulary.decode([token_id], skip_special_tokens=False))
        else:
            parser.marker(marker, marker)
    parser.finish(stopped=True)
    return writer.take()


@pytest.mark.parametrize(
    ("prompt", "kind"),
    [
        ("<|im_start|>assistant\n", CONTENT),
        ("<|im_start|>assistant\n<think>\n", REASONING),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", CONTENT),
        ("<|im_start|>assistant\n<think>\nThe user wants", REASONING),  # a message that is continued
        ("<|im_start|>user\nWhat is <think>?<|im_end|>\n<|im_start|>assistant\n", CONTENT),
        ("<|im_start|>assistant\n<think>a</think>b<|im_end|>\n<|im_start|>assistant\n", CONTENT),
    ],
)
def test_the_prompts_end_says_where_the_answer_begins(vocabulary: Vocabulary, prompt: str, kind: int) -> None:
    assert pieces(vocabulary, "qwen3", prompt, "so")[0] == (kind, "so")


def test_reasoning_that_the_prompt_opened_ends(vocabulary: Vocabulary) -> None:
    found = pieces(vocabulary, "qwen3", "<|im_start|>assistant\n<think>\n", "\nso</think>\n\nwell")
    assert found == [(REASONING, "so"), (CONTENT, "well")]


def test_harmony_goes_on_behind_the_role(vocabulary: Vocabulary) -> None:
    answer = "<|channel|>analysis<|message|>so<|end|><|start|>assistant<|channel|>final<|message|>well"
    for prompt in ("<|start|>user<|message|>hi<|end|><|start|>assistant", ""):
        assert pieces(vocabulary, "openai_gptoss", prompt, answer) == [(REASONING, "so"), (CONTENT, "well")]
    opened = "<|start|>assistant<|channel|>analysis<|message|>"
    assert pieces(vocabulary, "openai_gptoss", opened, "so") == [(REASONING, "so")]


def test_requests_without_calls_and_reasoning_have_no_format(vocabulary: Vocabulary) -> None:
    formats = AnswerFormats(vocabulary, CATALOG.tools["hermes"], None)
    assert formats.of_request(spec(), []) is None
    assert AnswerFormats(vocabulary, None, CATALOG.reasoning["qwen3"]).of_request(spec(reasoning=False), []) is None
    assert formats.of_request(spec(calls=True), []) is not None


def test_calls_in_an_unknown_format_are_refused(vocabulary: Vocabulary) -> None:
    formats = AnswerFormats(vocabulary, None, CATALOG.reasoning["qwen3"])
    with pytest.raises(TandemError, match="--tool-call-parser") as refused:
        formats.of_request(spec(calls=True), [])
    assert refused.value.param == "tool_choice"


def test_ids_are_a_function_of_prompt_seed_choice_and_number() -> None:
    def ids(prompt: list[int], seed: int, style: str = "openai") -> list[str]:
        made = CallIds(prompt, style)
        made.seed = seed
        return [made.call_id(choice, number) for choice in range(3) for number in range(3)]

    first = ids([1, 2, 3], 7)
    assert first == ids([1, 2, 3], 7)
    assert len({*first, *ids([1, 2, 3], 8), *ids([1, 2, 4], 7)}) == 27
    assert all(one.startswith("call_") and len(one) == 29 and one[5:].isalnum() for one in first)
    assert all(len(one) == 9 and one.isalnum() for one in ids([1], 7, "mistral"))


def test_the_budget_names_the_markers_tokens_and_where_the_answer_begins(vocabulary: Vocabulary) -> None:
    formats = AnswerFormats(vocabulary, None, CATALOG.reasoning["qwen3"])
    prompt = vocabulary.encode("<|im_start|>assistant\n<think>\n", add_special_tokens=False)
    budget = formats.thinking_budget(spec(budget=5), prompt)
    assert budget is not None and budget.max_tokens == 5 and budget.starts_open
    assert list(unpack_u32(budget.end_token_ids)) == vocabulary.encode("</think>", add_special_tokens=False)
    assert list(unpack_u32(budget.start_token_ids)) == vocabulary.encode("<think>", add_special_tokens=False)
    again = formats.thinking_budget(spec(budget=0), prompt[:-2])
    assert again is not None and not again.starts_open
    assert formats.thinking_budget(spec(), prompt) is None


def test_a_budget_without_a_known_format_is_refused(vocabulary: Vocabulary) -> None:
    with pytest.raises(TandemError, match="--reasoning-parser") as refused:
        AnswerFormats(vocabulary, None, None).thinking_budget(spec(budget=5), [])
    assert refused.value.param == "thinking_token_budget"


@pytest.mark.parametrize(("length", "is_aside"), [(10, False), (100_000, True)])
async def test_a_long_prompt_is_read_beside_the_event_loop(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch, length: int, is_aside: bool
) -> None:
    formats = AnswerFormats(vocabulary, CATALOG.tools["hermes"], CATALOG.reasoning["qwen3"])
    threads: list[threading.Thread] = []
    plan = formats.plan
    monkeypatch.setattr(formats, "plan", lambda *given: (threads.append(threading.current_thread()), plan(*given))[1])
    assert (await formats.plan_aside(spec(), [vocabulary.encode("a", add_special_tokens=False)[0]] * length)).format
    assert [thread is not threading.main_thread() for thread in threads] == [is_aside]
