"""Answers that follow grammars: the same bits alone, in a crowd, chunked, preempted, resumed and planned ahead; each
follows its grammar, and an error is that of its own request."""

import json
import re
from pathlib import Path

import pytest

from engine_core.step_plan import SamplingParams, pack_i32
from engine_core.worker_messages import BatchLimits
from services.options.declarations import WorkerOptions
from tests.checkpoints import DEMO_VOCAB_SIZE, make_qwen3
from tests.grammar.vocabularies import demo_tokens, ids_of
from tests.worker.grammar_engine import GrammarEngine
from tests.worker.in_process import Answer
from tests.worker.sample_rows import budget as thinking

NUM_TOKENS = 40
END = 2  # of the random models here
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "count": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["ok", "count"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
NUMBER = "start: /[0-9]{3,12}/"
ENDLESS = "start: /[a-z ]+/"
# Twenty equal alternatives, recursive on the right: each token adds to the parser's items, until they are at a limit.
GROWING = "\n".join(
    ("start: " + " | ".join(f"x{i}" for i in range(20)), *(f"x{i}: A x{i} | A" for i in range(20)), "A: /[abc]/")
)


def params(num_tokens: int = NUM_TOKENS, **fields: object) -> SamplingParams:
    return SamplingParams(num_tokens, temperature=0.9, logprobs=2, eos_token_ids=(END,), **fields)  # type: ignore[arg-type]


# A grammar and parameters each; an empty grammar is none.
REQUESTS: dict[str, tuple[str, SamplingParams]] = {
    "schema": (f"start: %json {json.dumps(SCHEMA)}", params()),
    "regex": (NUMBER, params()),
    "endless": (ENDLESS, params(frequency_penalty=0.5)),
    "a choice, the end ignored": ('start: "yes, of course" | "no, not at all"', params(ignore_eos=True)),
    "thinking, then digits": (
        'start: /[a-z]*/ "</t>" digits\ndigits: /[0-9]{2,4}/',
        params(thinking_budget=thinking(5, [], ids_of("</t>"), starts_open=True)),
    ),
    "at a limit": (GROWING, params(num_tokens=90, bad_words_token_ids=(pack_i32([END]),))),
    "without a grammar": ("", params()),
    "greedy": (NUMBER, SamplingParams(NUM_TOKENS, temperature=0.0, logprobs=1, eos_token_ids=(END,), min_tokens=4)),
}
PROMPTS = [[token_id % DEMO_VOCAB_SIZE for token_id in range(3 + row, 700 + 200 * row, 71)] for row in range(8)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_qwen3(tmp_path_factory.mktemp("model"), seed=2, dtype="bfloat16")


def start(path: Path, budget: int = 512, blocks: int | None = None) -> GrammarEngine:
    per_block = 2 * 2 * 8 * 2 * 16 * 2  # two layers of keys and values, 8 tokens, two heads of 16, in bf16
    options = WorkerOptions(
        model=str(path), device="cpu", dtype="bfloat16", max_model_len=128, block_size=8,
        kv_cache_memory_bytes=None if blocks is None else blocks * per_block,
    )  # fmt: skip
    return GrammarEngine(path, options, BatchLimits(3, 8, budget), prefix_caching=False)


def ask_all(engine: GrammarEngine) -> list[Answer]:
    return [
        engine.ask(prompt, sampling, grammar, seed)
        for seed, (prompt, (grammar, sampling)) in enumerate(zip(PROMPTS, REQUESTS.values(), strict=True))
    ]


@pytest.fixture(scope="module")
def alone(path: Path) -> list[Answer]:
    """Each request's answer without others."""
    found = []
    for seed, (prompt, (grammar, sampling)) in enumerate(zip(PROMPTS, REQUESTS.values(), strict=True)):
        engine = start(path)
        found.append(engine.ask(prompt, sampling, grammar, seed))
        engine.run()
    return found


def text_of(answer: Answer) -> str:
    return demo_tokens().decode_str([token_id for token_id in answer.token_ids if token_id != END])


def test_each_answer_follows_its_grammar(alone: list[Answer]) -> None:
    schema, number, endless, choice, thought, limit, free, greedy = map(text_of, alone)
    assert set(json.loads(schema)) == {"ok", "count"}
    assert re.fullmatch("[0-9]{3,12}", number) and re.fullmatch("[0-9]{4,12}", greedy)
    assert re.fullmatch("[a-z ]+", endless)
    assert choice in ("yes, of course", "no, not at all")
    assert re.fullmatch("[a-z]*</t>[0-9]{2,4}", thought)
    assert re.fullmatch("[abc]+", limit)
    assert not re.fullmatch("[a-z0-9]*", free), "other tokens are possible without a grammar"


def test_a_grammar_at_its_limit_is_an_error_of_its_row(alone: list[Answer]) -> None:
    failed = [answer for answer in alone if answer.error]
    assert failed == [alone[list(REQUESTS).index("at a limit")]]
    assert (
        failed[0].error.startswith("the grammar: ")
        and failed[0].param == "grammar"
        and 0 < len(failed[0].token_ids) < 60
    )


@pytest.mark.parametrize("budget", [512, 9, 16])
def test_neighbours_and_chunks_change_no_bit(path: Path, alone: list[Answer], budget: int) -> None:
    engine = start(path, budget)
    answers = ask_all(engine)
    engine.run()
    assert answers == alone
    assert budget == 512 or engine.stats.num_chunked_rows > 1


def test_a_preempted_request_goes_on_with_the_same_bits(path: Path, alone: list[Answer]) -> None:
    engine = start(path, blocks=20)
    answers = ask_all(engine)
    engine.run()
    assert answers == alone
    assert engine.stats.num_preemptions > 0


def test_steps_planned_before_the_last_result_change_no_bit(path: Path, alone: list[Answer]) -> None:
    engine = start(path)
    answers = ask_all(engine)
    engine.run_ahead()
    assert answers == alone
    assert engine.stats.num_steps_ahead > 10


@pytest.mark.parametrize("blocks", [16, 20])
def test_preemption_beside_steps_planned_ahead_changes_no_bit(path: Path, alone: list[Answer], blocks: int) -> None:
    engine = start(path, blocks=blocks)
    answers = ask_all(engine)
    engine.run_ahead()
    assert answers == alone
    assert engine.stats.num_preemptions > 0


@pytest.mark.parametrize("index", range(len(REQUESTS)), ids=REQUESTS)
def test_a_request_resumed_at_every_token_goes_on_with_the_same_bits(
    path: Path, alone: list[Answer], index: int
) -> None:
    engine, whole, (grammar, sampling) = start(path), alone[index], list(REQUESTS.values())[index]
    for done in range(1, len(whole.token_ids)):
        rest = engine.ask(PROMPTS[index], sampling, grammar, index, whole.token_ids[:done])
        engine.run()
        assert rest.token_ids == whole.token_ids[done:], f"resumed at {done}"
        assert rest.logprobs == whole.logprobs[done:], f"resumed at {done}"
        assert rest.error == whole.error, f"resumed at {done}"


def test_only_a_grammar_that_is_finished_is_reported_complete(path: Path, alone: list[Answer]) -> None:
    engine = start(path)
    ask_all(engine)
    engine.run()
    names = [list(REQUESTS)[handle] for handle in sorted(engine.completed)]
    ended = [name for name, answer in zip(REQUESTS, alone, strict=True) if END in answer.token_ids]
    assert {"schema", "a choice, the end ignored"} <= set(names)
    assert "endless" not in names or "endless" in ended
    assert not {"at a limit", "without a grammar"} & set(names)


def test_what_a_request_needed_is_dropped_after_its_end(path: Path) -> None:
    engine = start(path)
    ask_all(engine)
    engine.run()
    engine.ask(PROMPTS[0], params(), "")
    engine.run()
    assert len(engine.runner.grammars) == 0


def test_an_output_that_completes_its_grammar_ends_without_a_step(path: Path, alone: list[Answer]) -> None:
    engine, index = start(path), list(REQUESTS).index("a choice, the end ignored")
    grammar, sampling = REQUESTS["a choice, the end ignored"]
    rest = engine.ask(PROMPTS[index], sampling, grammar, index, alone[index].token_ids)
    assert not engine.step() and not engine.scheduler.has_unfinished
    assert rest == Answer()


def test_a_grammar_that_cannot_be_prepared_is_the_requests_error(path: Path) -> None:
    engine = start(path)
    answer = engine.ask(PROMPTS[0], params(), "start: missing")
    engine.run()
    assert answer.error.startswith("the grammar: ") and answer.param == "grammar"


def test_a_request_whose_parameters_leave_no_token_ends_alone(path: Path, alone: list[Answer]) -> None:
    engine = start(path)
    failed = engine.ask(PROMPTS[0], params(bad_words_token_ids=(pack_i32(ids_of("7")),)), 'start: "7"')
    ended = engine.ask(PROMPTS[0], params(min_tokens=9, bad_words_token_ids=(pack_i32(ids_of("7")),)), 'start: "7"?')
    answer = engine.ask(PROMPTS[1], REQUESTS["regex"][1], NUMBER, 1)
    engine.run()
    for one in (failed, ended):
        assert one.error.startswith("no token is left to sample") and "the grammar" in one.error
    assert answer == alone[1]
