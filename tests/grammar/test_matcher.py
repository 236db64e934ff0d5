import time

import numpy as np
import pytest

from services.grammar.cache import GrammarCache
from services.grammar.errors import GrammarError
from services.grammar.fragment import Fragment, literal, token
from services.grammar.limits import MAX_GRAMMAR_BYTES
from services.grammar.matcher import Matcher, mask_words
from services.grammar.tokens import grammar_tokens
from tests.grammar.vocabularies import DEMO, END, VOCAB_SIZE, demo_tokens, ids_of

# The items of a row grow with each token.
AMBIGUOUS = 'start: s\ns: s s | s s s | s s s s | "a" s | s "a" | A\nA: /[abc]/'


def allowed(matcher: Matcher) -> set[int]:
    mask = np.zeros(mask_words(VOCAB_SIZE), dtype=np.int32)
    matcher.fill_mask(mask)
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())


def matcher_after(grammar: str, text: str) -> Matcher:
    matcher = Matcher(demo_tokens(), grammar)
    matcher.replay(ids_of(text))
    return matcher


def test_a_mask_has_the_tokens_that_may_follow() -> None:
    assert allowed(matcher_after('start: "7"', "")) == set(ids_of("7"))


def test_a_text_may_be_written_in_any_tokens() -> None:
    first = {demo_tokens().decode_str([token]) for token in allowed(matcher_after('start: "hello"', "h"))}
    assert first == {"e", "el", "ell"}


def test_a_mask_does_not_look_for_what_is_determined() -> None:
    matcher = matcher_after('start: a{1000000}\na: "' + "x" * 10_000 + '"', "")
    start = time.thread_time()
    allowed(matcher)
    assert time.thread_time() - start < 0.1


def test_a_finished_grammar_is_complete_and_allows_only_the_end() -> None:
    matcher = matcher_after('start: "yes"', "yes")
    assert matcher.is_complete
    assert allowed(matcher) == {END}


def test_an_answer_that_may_go_on_is_not_complete_until_its_end_token() -> None:
    matcher = matcher_after("start: /[0-9]+/", "42")
    assert not matcher.is_complete
    assert END in allowed(matcher)
    matcher.consume(END)
    assert matcher.is_complete


def test_looking_ahead_changes_no_mask() -> None:
    text = '{"a": [1, 2]}'
    plain, ahead = (Matcher(demo_tokens(), 'start: %json {"type": "object"}') for _ in range(2))
    for token_id in ids_of(text):
        ahead.look_ahead()
        assert allowed(ahead) == allowed(plain)
        plain.consume(token_id)
        ahead.consume(token_id)
    assert not ahead.take_ahead(np.zeros(mask_words(VOCAB_SIZE), dtype=np.int32))


def test_a_token_that_does_not_fit_is_an_error_and_no_end() -> None:
    matcher = matcher_after('start: "yes"', "")
    with pytest.raises(GrammarError):
        matcher.consume(ids_of("no")[0])
    assert not matcher.is_complete


def test_a_limit_is_an_error_at_the_same_token_in_a_replay() -> None:
    ids = ids_of("abcabacbcabacacbabcabcbacbacbabcabcacb" * 12)

    def fails_at(num_replayed: int) -> int:
        matcher = Matcher(demo_tokens(), AMBIGUOUS)
        matcher.replay(ids[:num_replayed])
        mask = np.zeros(mask_words(VOCAB_SIZE), dtype=np.int32)
        for index in range(num_replayed, len(ids)):
            try:
                matcher.fill_mask(mask)
                matcher.consume(ids[index])
            except GrammarError:
                return index
        raise AssertionError("no limit was reached")

    first = fails_at(0)
    assert {fails_at(count) for count in (first // 2, first - 1)} == {first}


@pytest.mark.parametrize("grammar", ['start: "a" )', 'start: %json {"not": {}}', "start: b"])
def test_a_malformed_grammar_is_refused_in_one_line(grammar: str) -> None:
    with pytest.raises(GrammarError) as caught:
        Matcher(demo_tokens(), grammar)
    assert "\n" not in str(caught.value)
    assert not str(caught.value).startswith("at ")


def test_a_grammar_that_is_too_large_is_not_compiled() -> None:
    with pytest.raises(GrammarError, match="larger than"):
        Matcher(demo_tokens(), "#" * (MAX_GRAMMAR_BYTES + 1))


def test_a_cache_remembers_both_verdicts_and_stays_bounded() -> None:
    cache = GrammarCache(demo_tokens(), max_entries=2)
    for _ in range(2):
        cache.check('start: "a"')
        with pytest.raises(GrammarError):
            cache.check("start: b")
    cache.check('start: "c"')
    assert len(cache._verdicts) == 2


def test_a_cache_refuses_a_grammar_that_compiles_but_has_no_first_token() -> None:
    schema = '{"anyOf": [' + ", ".join(f'{{"const": {{"kind": {number}}}}}' for number in range(5_000)) + "]}"
    grammar = f"start: %json {schema}"
    Matcher(demo_tokens(), grammar)
    with pytest.raises(GrammarError, match="[Tt]oo many items"):
        GrammarCache(demo_tokens()).check(grammar)


def test_a_fragment_is_a_grammar_with_its_rules() -> None:
    whole = Fragment(token(3) + " (number | " + literal('say "no"') + ")", ("number: /[0-9]+/",))
    matcher = Matcher(demo_tokens(), whole.text)
    assert allowed(matcher) == {3}
    matcher.consume(3)
    matcher.replay(ids_of('say "no"'))
    assert matcher.is_complete


def test_vocabularies_that_cannot_be_used_are_refused() -> None:
    with pytest.raises(GrammarError, match="end-of-sequence"):
        grammar_tokens(DEMO, VOCAB_SIZE, [])
    with pytest.raises(GrammarError, match=r"tokenizer\.json does not support grammars"):
        grammar_tokens(DEMO / "missing", VOCAB_SIZE, [END])
