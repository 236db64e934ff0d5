"""The text that a choice's tokens release is the same however they are split over steps, resumed or not."""

from hypothesis import given, settings
from hypothesis import strategies as st

from services.rpc.pieces import CONTENT, Piece
from services.tokenizer.choice_output import ChoiceOutput, OutputRules
from tests.tokenizer.parts import END, ids_of, tokenizer

many = settings(max_examples=300, deadline=None, derandomize=True)


def rules(stop: list[str], *, min_tokens: int = 0, include: bool = False, skip: bool = True) -> OutputRules:
    return OutputRules(stop, include, skip, True, frozenset({END}), min_tokens)


def text_of(pieces: list[Piece]) -> str:
    """Returns the joined text, which is one piece of content at most."""
    assert len(pieces) <= 1 and all(kind == CONTENT and text for kind, text in pieces)
    return "".join(text for _, text in pieces)


def push(output: ChoiceOutput, token_ids: list[int]) -> str:
    return text_of(output.push(token_ids).pieces)


def new_output(how: OutputRules) -> ChoiceOutput:
    return ChoiceOutput(tokenizer(), ids_of("a prompt"), how)


def finish(output: ChoiceOutput) -> str:
    """Returns the text of the terminal message: none after a stop string."""
    return text_of(output.flush()) if output.stop_string is None else ""


def output_rules() -> st.SearchStrategy[OutputRules]:
    words = st.sampled_from(["a", " b", "ab", "🙂", "é a", "<|im_end|>", "a🙂b", "aa"])
    stop = st.lists(words, max_size=3)
    flags = [st.booleans()] * 3
    return st.builds(OutputRules, stop, *flags, st.just(frozenset({END})), st.integers(0, 8))


def answers() -> st.SearchStrategy[list[int]]:
    some = st.text("ab é🙂", max_size=4).map(ids_of) | st.integers(0, 300).map(lambda token_id: [token_id])
    return st.lists(some, max_size=8).map(lambda found: [token_id for ids in found for token_id in ids])


@many
@given(how=output_rules(), ids=answers())
def test_a_resumed_choice_releases_the_rest_of_the_text(how: OutputRules, ids: list[int]) -> None:
    """For every number of resumed tokens."""
    one = new_output(how)
    contents = [push(one, [token_id]) for token_id in ids if one.stop_string is None]
    used, hit = one.num_tokens, one.stop_string
    contents.append(finish(one))
    for resumed in range(used + 1):
        again = new_output(how)
        assert push(again, ids[:resumed]) == "".join(contents[:resumed])
        if again.stop_string is None:
            assert push(again, ids[resumed:used]) == "".join(contents[resumed:used])
        assert (again.stop_string, again.num_tokens) == (hit, used)
        assert finish(again) == contents[-1]


@many
@given(how=output_rules(), ids=answers(), data=st.data())
def test_the_text_does_not_depend_on_the_steps(how: OutputRules, ids: list[int], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(ids)))
    whole, parts = new_output(how), new_output(how)
    text = push(whole, ids)
    first = parts.push(ids[:cut])
    second = push(parts, ids[cut:]) if parts.stop_string is None else ""
    assert text_of(first.pieces) + second + finish(parts) == text + finish(whole)
    assert (parts.num_tokens, parts.stop_string) == (whole.num_tokens, whole.stop_string)


def test_count_is_the_tokens_up_to_the_stop_string() -> None:
    ids = [token_id for word in ("one", " two", " three", " four") for token_id in ids_of(word)]
    upto = len(ids) - len(ids_of(" four"))
    output = new_output(rules([" three"]))
    released = output.push(ids)
    assert (released.num_tokens, text_of(released.pieces), output.num_tokens) == (upto, "one two", upto)


def test_min_tokens_lets_an_early_stop_string_pass() -> None:
    ids = ids_of("x,x,x,")
    assert len(ids) == 6
    assert push(new_output(rules([","], min_tokens=2)), ids) == "x,x"
    assert push(new_output(rules([","], min_tokens=2, include=True)), ids) == "x,x,"


def test_a_stop_string_that_begins_within_min_tokens_counts() -> None:
    output = new_output(rules([",x,"], min_tokens=3))
    assert push(output, ids_of("x,x,x,")) == "x"
    assert output.stop_string == ",x,"


def test_the_token_that_ends_the_choice_adds_no_text() -> None:
    ids = [*ids_of("bye"), END]
    assert push(new_output(rules([], skip=False)), ids) == "bye"
    assert push(new_output(rules([], skip=False, include=True)), ids) == "bye<|im_end|>"
    assert push(new_output(rules([], skip=True, include=True)), ids) == "bye"
    assert push(new_output(rules([], skip=False, min_tokens=len(ids))), ids) == "bye<|im_end|>"


def test_a_stop_string_with_a_character_split_over_tokens() -> None:
    ids = ids_of("a🙂b")
    assert len(ids) > 3
    output = new_output(rules(["🙂b"]))
    assert push(output, ids[:-1]) == "a"
    assert push(output, ids[-1:]) == ""
    assert output.stop_string == "🙂b"


def test_offsets_are_where_each_tokens_text_starts() -> None:
    ids = [*ids_of("one"), *ids_of(" two"), *ids_of(" three")]
    texts = [tokenizer().decode([token_id]) for token_id in ids]
    expected = [len("".join(texts[:index])) for index in range(len(ids))]
    output = new_output(rules([]))
    first, second = output.push(ids[:2]), output.push(ids[2:])
    assert first.offsets + second.offsets == expected


def test_tokens_of_one_character_start_where_it_starts() -> None:
    ids = ids_of("a🙂b")
    assert len(ids) > 3
    assert new_output(rules([])).push(ids).offsets == [0, *[1] * (len(ids) - 2), 2]


def test_text_of_an_incomplete_character_counts_for_the_token_after_it() -> None:
    """The replacement character is released together with b, which starts one character later."""
    ids = [*ids_of("a"), *ids_of("🙂")[:-1], *ids_of("b")]
    output = new_output(rules([]))
    released = output.push(ids)
    assert text_of(released.pieces) == "a\ufffdb"
    assert (released.offsets[0], released.offsets[1], released.offsets[-1]) == (0, 1, 2)


def test_text_held_back_for_a_stop_string_counts_in_offsets() -> None:
    output = new_output(rules(["one more"]))
    first = output.push(ids_of("one"))
    second = output.push(ids_of(" six"))
    assert (text_of(first.pieces), text_of(second.pieces), second.offsets[0]) == ("", "one six", len("one"))
