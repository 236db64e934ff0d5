"""`python -m loadtest.studies.grammar_limits [--model DIR] [SCHEMA.json ...]`: what sets the limits of grammars.

First what schemas need, in llguidance's counts: those of tests/structured and the files given. Then what hostile
grammars cost: the longest CPU time of one mask at llguidance's defaults and at services/grammar/limits.py, over 200
tokens. --model is a directory with a tokenizer.json. Takes a minute.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from llguidance import LLInterpreter, LLMatcher, LLParserLimits, LLTokenizer

import demo
from services.grammar.limits import LIMITS
from services.machine import cpu_model
from tests.structured.cases import schema_cases, suite_cases
from tests.structured.walk import allowed_ids

STEPS = 200
ROWS = (50, 100, 150, 200, 300, 400, 600, 1000)
WHITESPACE = r" |\n[ \t]{0,39}"
OPTIONS = {"lenient": True, "coerce_one_of": True, "whitespace_flexible": False, "whitespace_pattern": WHITESPACE}
HOSTILE = {
    "s: s s | A": "start: s\ns: s s | A\nA: /[abc]/",
    "s: s s | s s s | s s s s | …": 'start: s\ns: s s | s s s | s s s s | "a" s | s "a" | A\nA: /[abc]/',
    "optional parts in a circle": 'start: s*\ns: "a"? "b"? t t t\nt: "a"? "c"? u u\nu: "a"? "b"? s?',
    "300 terminals that overlap": f"start: ({' | '.join(f'T{n}' for n in range(300))})*\n"
    + "\n".join(f"T{n}: /[a-z]*{chr(97 + n % 26)}[a-z]{{{n % 9}}}{n}/" for n in range(300)),
    "three expressions that overlap": r"start: /(.*a.{10}|.*b.{11}|.*c.{9})*/",
    "a state per beginning": r"start: /(.|\n)*a(.|\n){14}/",
    "letters of every script": r"start: /(\p{L}|\p{N}|\p{Lu}){1,300}[^\p{L}]*\p{L}{20}/",
}


def free_limits(max_items_in_row: int = 100_000) -> LLParserLimits:
    """Returns limits that no schema reaches, but for that of items in a row."""
    return LLParserLimits(
        max_items_in_row=max_items_in_row,
        initial_lexer_fuel=10**8,
        step_lexer_fuel=10**8,
        step_max_items=10**7,
        max_lexer_states=10**7,
        max_grammar_size=10**7,
    )


def schemas(files: list[Path]) -> Iterator[dict[str, Any]]:
    for case in (*suite_cases(), *schema_cases()):
        yield case.value
    for file in files:
        yield json.loads(file.read_text(encoding="utf-8"))


def counts(tokens: LLTokenizer, grammar: str, rng: np.random.Generator) -> tuple[list[int], list[tuple[int, int]]]:
    """Returns (a random answer, (fuel, items) of each of its masks); the first fuel is that of the start."""
    interpreter = LLInterpreter(tokens, grammar, False, False, 0, free_limits())
    interpreter.start_without_prompt()
    ids: list[int] = []
    found: list[tuple[int, int]] = []
    while len(ids) < STEPS and not interpreter.has_pending_stop():
        mask, told = interpreter.compute_mask()
        if mask is None:
            break
        stats = json.loads(told)["progress"][0]["stats"]
        found.append((stats["lexer_cost"], stats["all_items"]))
        ids.append(int(rng.choice(np.flatnonzero(np.frombuffer(mask, dtype=np.uint8)))))
        interpreter.commit_token(ids[-1])
    return ids, found


def needed_row(tokens: LLTokenizer, grammar: str, ids: list[int]) -> int:
    """Returns the smallest of ROWS that the answer needs as max_items_in_row."""
    for row in ROWS:
        matcher = LLMatcher(tokens, grammar, log_level=0, limits=free_limits(row))
        for token_id in ids:
            matcher.compute_bitmask()
            matcher.consume_token(token_id)
        if not matcher.is_error():
            return row
    return sys.maxsize


def print_needs(tokens: LLTokenizer, files: list[Path]) -> None:
    needs = []
    refused = 0
    for index, schema in enumerate(schemas(files)):
        if not isinstance(schema, dict):
            continue
        grammar = "start: %json " + json.dumps({**schema, "x-guidance": OPTIONS})
        if LLMatcher(tokens, grammar, log_level=0, limits=free_limits()).is_error():
            refused += 1
            continue
        ids, found = counts(tokens, grammar, np.random.default_rng(index))
        if found:
            (start, _), *rest = found
            step = max((fuel for fuel, _ in rest), default=0)
            needs.append((start, step, max(items for _, items in found), needed_row(tokens, grammar, ids)))
    table = np.array(needs)
    print(f"{len(table)} schemas, {refused} not compiled")
    for name, column in zip(
        ("fuel at the start", "fuel of a mask", "items of a mask", "items of a row"), table.T, strict=True
    ):
        most = column.max()
        print(f"  {name:18} median {np.median(column):7.0f}, 99% {np.percentile(column, 99):7.0f}, most {most:7.0f}")


def longest_mask(tokens: LLTokenizer, grammar: str, limits: LLParserLimits) -> tuple[float, int, str]:
    """Returns (CPU milliseconds of the longest mask, number of masks, why it ended)."""
    rng = np.random.default_rng(1)
    ids = [token_id for text in ("a", "b", "c", "ab", "ba") if len(token_id := tokens.tokenize_str(text)) == 1]
    matcher = LLMatcher(tokens, grammar, log_level=0, limits=limits)
    longest, count = 0.0, 0
    while count < STEPS and not matcher.is_error() and not matcher.is_stopped():
        began = time.thread_time()
        mask = np.frombuffer(matcher.compute_bitmask(), dtype=np.int32)
        longest = max(longest, time.thread_time() - began)
        allowed = set(allowed_ids(mask).tolist())
        good = [each[0] for each in ids if each[0] in allowed]
        if good:
            matcher.consume_token(int(rng.choice(good)))
        count += 1
        if not good:
            break
    return longest * 1e3, count, matcher.get_error().split("\n")[0][:60]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=demo.CHECKPOINT, help="directory with a tokenizer.json")
    parser.add_argument("schemas", nargs="*", type=Path, help="further schemas")
    args = parser.parse_args()
    tokens = LLTokenizer(str(args.model / "tokenizer.json"))
    print(f"{cpu_model()}, one thread, {tokens.vocab_size} tokens")
    print_needs(tokens, args.schemas)
    for name, grammar in HOSTILE.items():
        for title, limits in (("defaults", LLParserLimits()), ("ours", LIMITS)):
            longest, count, error = longest_mask(tokens, grammar, limits)
            print(f"  {name:32} {title:8} {longest:6.1f} ms, {count:3} masks {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
