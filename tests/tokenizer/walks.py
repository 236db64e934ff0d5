"""Random answers that follow a grammar, and what their parser makes of them: models that write anything they may."""

import json
import random
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import demo
from services.grammar.cache import GrammarCache
from services.grammar.matcher import Matcher, mask_words
from services.grammar.tokens import grammar_tokens
from services.rpc.generated import text_pb2
from services.rpc.pieces import TOOL_CALL
from services.tokenizer.answer_divider import AnswerDivider
from services.tokenizer.answer_grammar import AnswerGrammars
from services.tokenizer.choice_output import ChoiceOutput, OutputRules
from services.tokenizer.parsing.answer_format import AnswerFormats
from services.tokenizer.parsing.catalog import built_in
from services.tokenizer.parsing.table import Table
from services.tokenizer.vocabulary import Vocabulary
from tests.tokenizer.parsing.drive import Answer, answer_of

END = 0  # the demo's end of text
CLOSING = set('"}])<>;\n')  # tokens with these are drawn more often: what a model writes has an end


@dataclass(frozen=True)
class Model:
    """The demo's vocabulary with other added tokens, and the formats of its answers."""

    vocabulary: Vocabulary
    formats: AnswerFormats
    grammars: AnswerGrammars
    cache: GrammarCache
    closing: npt.NDArray[np.bool_]  # [tokens of a mask]: what ends something, and added tokens


def model(folder: Path, added: tuple[str, ...], tools: Table | str | None, reasoning: str | None) -> Model:
    """`tools`, `reasoning`: built-in formats by their names, or a table. `folder`: an empty one, for the vocabulary."""
    config = json.loads((demo.CHECKPOINT / "tokenizer.json").read_text())
    config["added_tokens"] = [token for token in config["added_tokens"] if token["special"]]
    known = {token["content"] for token in config["added_tokens"]}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    first = 2000
    for index, text in enumerate(text for text in added if text not in known):
        special = not text.startswith(("<t", "</t", "<a", "</a"))
        config["added_tokens"].append({"id": first + index, "content": text, "special": special, **flags})
    (folder / "tokenizer.json").write_text(json.dumps(config))
    vocabulary, catalog = Vocabulary(folder), built_in()
    formats = AnswerFormats(
        vocabulary,
        catalog.tools[tools] if isinstance(tools, str) else tools,
        catalog.reasoning[reasoning] if reasoning is not None else None,
    )
    tokens = grammar_tokens(folder, first + len(added), [END])
    closing = np.arange(32 * mask_words(tokens.vocab_size)) >= first
    closing[:1024] = [
        bool(CLOSING & set(vocabulary.token_bytes(index).decode(errors="replace"))) for index in range(1024)
    ]
    closing[END] = True
    return Model(vocabulary, formats, AnswerGrammars(formats), GrammarCache(tokens), closing)


@dataclass(frozen=True)
class Walk:
    """One answer. `ended`: the grammar was complete, or the end was drawn where it may be."""

    token_ids: list[int]
    ended: bool
    text: str


def walk(of: Model, grammar: str, seed: int, max_tokens: int = 400) -> Walk:
    """Draws tokens that the grammar allows until it is complete."""
    source, token_ids = random.Random(seed), list[int]()
    matcher = Matcher(of.cache.tokens, grammar)
    mask = np.zeros(mask_words(of.cache.tokens.vocab_size), dtype=np.int32)
    while len(token_ids) < max_tokens and not matcher.is_complete:
        matcher.fill_mask(mask)
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        assert len(allowed), "a grammar that goes on allows a token"
        closing = allowed[of.closing[allowed]]
        token = int(source.choice(closing if len(closing) and source.random() < 0.5 else allowed))
        matcher.consume(token)
        if token == END:
            return Walk(token_ids, True, of.cache.tokens.decode_str(token_ids))
        token_ids.append(token)
    return Walk(token_ids, matcher.is_complete, of.cache.tokens.decode_str(token_ids))


@dataclass(frozen=True)
class Found:
    """What the parser makes of an answer."""

    answer: Answer
    num_broken: int


def parsed(of: Model, output: text_pb2.OutputSpec, prompt: list[int], answer: Walk) -> Found:
    """Divides an answer as the tokenizer does for a client."""
    plan = of.formats.plan(output, prompt)
    divider = AnswerDivider(plan.format, 0) if plan.format is not None else None
    rules = OutputRules([], False, True, True, frozenset({END}), 0)
    choice = ChoiceOutput(of.vocabulary.tokenizer, prompt, rules, divider)
    pieces = list(choice.push(answer.token_ids).pieces)
    pieces += choice.flush(stopped=answer.ended)
    ids = (f"id{number}" for number in count())
    pieces = [(kind, next(ids) if kind == TOOL_CALL else text) for kind, text in pieces]
    return Found(answer_of(pieces), choice.num_broken_calls)


def tool(name: str, parameters: Any, *, strict: bool = False) -> dict[str, Any]:
    """Returns a tool of OpenAI's form; `parameters` None: without."""
    function = {"name": name, "parameters": parameters, "strict": strict}
    return {"type": "function", "function": {key: value for key, value in function.items() if value is not None}}
