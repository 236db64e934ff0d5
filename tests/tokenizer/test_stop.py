"""Stop strings against an oracle that sees the whole text, and what a choice's tokens release, resumed or not."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

import demo
from services.rpc.columns import unpack_u32
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2
from services.rpc.hello import make_hello
from services.telemetry.spans import NO_SPAN
from services.tokenizer.choice_output import ChoiceOutput, OutputRules
from services.tokenizer.engine_client import EngineClient, TokenLogprobColumns
from services.tokenizer.mailbox import TextMailbox
from services.tokenizer.stop import StopMatcher
from services.tokenizer.text_request import TextRequest
from services.tokenizer.vocabulary import Vocabulary

many = settings(max_examples=300, deadline=None, derandomize=True)
stops = st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=4)
pieces = st.lists(st.text("abc", max_size=3), max_size=12)
END = 2  # the demo's end-of-turn token


def run(stop: list[str], texts: list[str], *, include: bool = False, exempt: int = 0) -> tuple[str, str | None]:
    """All that is released, and the hit; no stop string may end in the first `exempt` texts."""
    matcher = StopMatcher(stop, include_in_output=include)
    text = "".join(matcher.push(piece, may_end=index >= exempt) for index, piece in enumerate(texts))
    return text + matcher.flush(), matcher.hit


def oracle(stop: list[str], texts: list[str], *, include: bool = False, exempt: int = 0) -> tuple[str, str | None]:
    """Looks at the whole text after each piece."""
    deaf = len("".join(texts[:exempt]))
    for count in range(exempt, len(texts)):
        text = "".join(texts[: count + 1])
        places = range(len(text))
        found = [(p, -len(s), s) for s in stop for p in places if text.startswith(s, p) and p + len(s) > deaf]
        if found:
            place, length, hit = min(found)
            return text[: place - length if include else place], hit
    return "".join(texts), None


@many
@given(stop=stops, texts=pieces, include=st.booleans())
def test_released_is_the_text_up_to_the_first_stop_string(stop: list[str], texts: list[str], include: bool) -> None:
    assert run(stop, texts, include=include) == oracle(stop, texts, include=include)


@many
@given(stop=stops, texts=pieces, include=st.booleans(), exempt=st.integers(0, 12))
def test_no_stop_string_ends_where_none_may(stop: list[str], texts: list[str], include: bool, exempt: int) -> None:
    assert run(stop, texts, include=include, exempt=exempt) == oracle(stop, texts, include=include, exempt=exempt)


@many
@given(stop=stops, texts=pieces)
def test_just_what_may_begin_a_stop_string_is_held_back(stop: list[str], texts: list[str]) -> None:
    matcher, out = StopMatcher(stop, include_in_output=False), ""
    for count, piece in enumerate(texts, start=1):
        out += matcher.push(piece)
        if matcher.hit is not None:
            return
        text = "".join(texts[:count])
        beginnings = (
            size for size in range(len(text) + 1) if any(s.startswith(text[len(text) - size :]) for s in stop)
        )
        assert out == text[: len(text) - max(beginnings)]


@many
@given(stop=stops, texts=pieces, after=pieces)
def test_what_comes_after_a_hit_changes_nothing(stop: list[str], texts: list[str], after: list[str]) -> None:
    before = run(stop, texts)
    if before[1] is not None:
        assert run(stop, texts + after) == before


@many
@given(stop=stops, texts=pieces, after=pieces, include=st.booleans())
def test_nothing_is_taken_back(stop: list[str], texts: list[str], after: list[str], include: bool) -> None:
    matcher = StopMatcher(stop, include_in_output=include)
    out = "".join(map(matcher.push, texts))
    assert run(stop, texts + after, include=include)[0].startswith(out)


@pytest.mark.parametrize(
    ("stop", "texts", "expected"),
    [
        (["bc", "b"], ["abcd"], ("a", "bc")),  # both begin there: the longest
        (["c", "abc"], ["abcd"], ("", "abc")),  # the one that begins first
        (["bc", "abcd"], ["a", "b", "c", "d"], ("a", "bc")),  # the first that is complete
        (["aab"], ["aaa", "ab"], ("aa", "aab")),  # a beginning that overlaps itself
        (["\n\nUser:"], ["Fine.\n", "\nUs", "er", ": Hi"], ("Fine.", "\n\nUser:")),
        (["\n\nUser:"], ["Fine.\n", "\nUse", "less"], ("Fine.\n\nUseless", None)),
        ([], ["a", "b"], ("ab", None)),
    ],
)
def test_examples(stop: list[str], texts: list[str], expected: tuple[str, str | None]) -> None:
    assert run(stop, texts) == expected
    if expected[1] is not None:
        assert run(stop, texts, include=True) == (expected[0] + expected[1], expected[1])


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(demo.CHECKPOINT / "tokenizer.json"))


def ids_of(text: str) -> list[int]:
    return list(tokenizer().encode(text, add_special_tokens=False).ids)


def rules(stop: list[str], *, min_tokens: int = 0, include: bool = False, skip: bool = True) -> OutputRules:
    return OutputRules(stop, include, skip, frozenset({END}), min_tokens)


def new_output(how: OutputRules) -> ChoiceOutput:
    return ChoiceOutput(tokenizer(), ids_of("a prompt"), how)


def finish(output: ChoiceOutput) -> str:
    """What the terminal message adds: nothing after a stop string."""
    return output.flush() if output.stop_string is None else ""


def output_rules() -> st.SearchStrategy[OutputRules]:
    words = st.sampled_from(["a", " b", "ab", "🙂", "é a", "<|im_end|>", "a🙂b", "aa"])
    stop = st.lists(words, max_size=3)
    return st.builds(OutputRules, stop, st.booleans(), st.booleans(), st.just(frozenset({END})), st.integers(0, 8))


def answers() -> st.SearchStrategy[list[int]]:
    some = st.text("ab é🙂", max_size=4).map(ids_of) | st.integers(0, 300).map(lambda token_id: [token_id])
    return st.lists(some, max_size=8).map(lambda found: [token_id for ids in found for token_id in ids])


@many
@given(how=output_rules(), ids=answers())
def test_a_replay_of_the_first_tokens_goes_on_as_one_run_does(how: OutputRules, ids: list[int]) -> None:
    """For every number of tokens that a resumed choice may bring along."""
    one = new_output(how)
    contents = [one.push([token_id]).content for token_id in ids if one.stop_string is None]
    used, hit = one.num_tokens, one.stop_string
    contents.append(finish(one))
    for resumed in range(used + 1):
        again = new_output(how)
        assert again.push(ids[:resumed]).content == "".join(contents[:resumed])
        if again.stop_string is None:
            assert again.push(ids[resumed:used]).content == "".join(contents[resumed:used])
        assert (again.stop_string, again.num_tokens) == (hit, used)
        assert finish(again) == contents[-1]


@many
@given(how=output_rules(), ids=answers(), data=st.data())
def test_where_steps_are_cut_does_not_matter(how: OutputRules, ids: list[int], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(ids)))
    whole, parts = new_output(how), new_output(how)
    text = whole.push(ids).content
    first = parts.push(ids[:cut])
    second = parts.push(ids[cut:]).content if parts.stop_string is None else ""
    assert first.content + second + finish(parts) == text + finish(whole)
    assert (parts.num_tokens, parts.stop_string) == (whole.num_tokens, whole.stop_string)


def test_count_is_the_tokens_up_to_the_stop_string() -> None:
    ids = [token_id for word in ("one", " two", " three", " four") for token_id in ids_of(word)]
    upto = len(ids) - len(ids_of(" four"))
    output = new_output(rules([" three"]))
    released = output.push(ids)
    assert (released.num_tokens, released.content, output.num_tokens) == (upto, "one two", upto)


def test_min_tokens_lets_an_early_stop_string_pass() -> None:
    ids = ids_of("x,x,x,")
    assert len(ids) == 6
    assert new_output(rules([","], min_tokens=2)).push(ids).content == "x,x"
    assert new_output(rules([","], min_tokens=2, include=True)).push(ids).content == "x,x,"


def test_a_stop_string_that_begins_within_min_tokens_counts() -> None:
    output = new_output(rules([",x,"], min_tokens=3))
    assert output.push(ids_of("x,x,x,")).content == "x"
    assert output.stop_string == ",x,"


def test_the_token_that_ends_the_answer_is_no_text() -> None:
    ids = [*ids_of("bye"), END]
    assert new_output(rules([], skip=False)).push(ids).content == "bye"
    assert new_output(rules([], skip=False, include=True)).push(ids).content == "bye<|im_end|>"
    assert new_output(rules([], skip=True, include=True)).push(ids).content == "bye"
    assert new_output(rules([], skip=False, min_tokens=len(ids))).push(ids).content == "bye<|im_end|>"


def test_a_stop_string_across_a_character_cut_between_tokens() -> None:
    ids = ids_of("a🙂b")
    assert len(ids) > 3
    output = new_output(rules(["🙂b"]))
    assert output.push(ids[:-1]).content == "a"
    assert output.push(ids[-1:]).content == ""
    assert output.stop_string == "🙂b"


class Asked:
    """The listener of a request."""

    def __init__(self) -> None:
        self.over: list[int] = []

    def started(self, handle: int) -> None: ...

    def ended(self, handle: int) -> None:
        self.over.append(handle)


async def test_tokens_behind_a_stop_string_are_dropped_with_their_logprobs() -> None:
    """The engine was faster than its abort."""
    mailbox, asked = TextMailbox(1), Asked()
    submit = text_pb2.TextSubmit(attempt=2, stop=[" two"], choices=[pb.Choice(handle=5)])
    engines = EngineClient((), make_hello("tokenizer"))
    request = TextRequest(submit, ids_of("a prompt"), Vocabulary(demo.CHECKPOINT), mailbox, engines, asked, NO_SPAN)
    request.start()
    ids = ids_of("one two three")
    request.tokens(1, 0, ids, TokenLogprobColumns(1, ids, [-1.0] * len(ids)))
    batch = mailbox.take().batch
    kept = len(ids_of("one two"))
    assert unpack_u32(batch.events[0].token_ids) == ids[:kept]
    assert (batch.events[0].content, len(batch.events[0].logprobs)) == ("one", kept)
    terminal = batch.terminals[0]
    assert (terminal.handle, terminal.stop_string, terminal.output_tokens) == (5, " two", kept)
    assert asked.over == [5]
