"""Runs cases without a server: their grammar, random answers, and what the suite says of its schemas."""

import json
from collections.abc import Iterable

import numpy as np
from llguidance import LLTokenizer

from services.grammar.errors import GrammarError
from services.grammar.matcher import Matcher
from services.rpc.errors import TandemError
from services.tokenizer.structured.content import content_fragment
from tests.structured.cases import Case, Group
from tests.structured.tally import Tally
from tests.structured.walk import is_accepted, random_answer


def grammar_of(tokens: LLTokenizer, case: Case) -> str:
    """Returns the grammar of a case. Raises TandemError or GrammarError if the tokenizer refuses it: a client's 400."""
    grammar = content_fragment(case.structured).fragment.text
    Matcher(tokens, grammar)
    return grammar


def run_answers(tokens: LLTokenizer, cases: Iterable[Case], each: int, max_tokens: int, seed: int = 0) -> Tally:
    """Draws `each` answers of every case and judges them."""
    tally = Tally()
    for index, case in enumerate(cases):
        try:
            grammar = grammar_of(tokens, case)
        except (TandemError, GrammarError) as error:
            tally.refused.append(f"{case.name}: {error}")
            continue
        for number in range(each):
            rng = np.random.default_rng((seed, index, number))
            answer = random_answer(tokens, grammar, rng, max_tokens)
            tally.limits += bool(answer.error)
            ids = answer.token_ids[:-1] if answer.error else answer.token_ids
            tally.add(case, answer.text, answer.is_complete, is_accepted(tokens, grammar, ids))
    return tally


def verdict(tokens: LLTokenizer, grammar: str, value: object) -> bool:
    """Returns whether the grammar accepts the value as compact JSON."""
    matcher = Matcher(tokens, grammar)
    ids = tokens.tokenize_str(json.dumps(value, separators=(",", ":"), ensure_ascii=False))
    try:
        matcher.replay(ids)
        if not matcher.is_complete:
            matcher.replay([tokens.eos_token])
    except GrammarError:
        return False
    return matcher.is_complete


def disagreements(tokens: LLTokenizer, group: Group, grammar: str) -> tuple[list[str], list[str]]:
    """Returns (the suite's values that the grammar accepts although they are not valid, those that it refuses although
    they are): "group: description" each."""
    wrong, refused = [], []
    for test in group.tests:
        accepted = verdict(tokens, grammar, test["data"])
        if accepted and not test["valid"]:
            wrong.append(f"{group.name}: {test['description']}")
        if not accepted and test["valid"]:
            refused.append(f"{group.name}: {test['description']}")
    return wrong, refused
