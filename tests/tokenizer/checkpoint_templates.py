"""The chat templates of checkpoints in tests/tokenizer/templates, and what a model would have generated with them."""

import json
import re
import tomllib
from functools import cache
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from tokenizers import AddedToken, Tokenizer

import demo
from services.tokenizer.render import ChatTemplate
from services.tokenizer.vocabulary import Vocabulary

FOLDER = Path(__file__).parent / "templates"
SOURCES: dict[str, dict[str, Any]] = tomllib.loads((FOLDER / "sources.toml").read_text(encoding="utf-8"))
NAMES = list(SOURCES)
# Templates that leave calls out: theirs become text of the content.
CALLS_AS_TEXT = frozenset({"granite3.3", "lfm2", "gemma2", "smollm3", "phi3.5-mini"})
# Templates that leave out the content of a message with calls.
WITHOUT_CONTENT = frozenset(
    {
        *("hermes3", "llama3.1", "llama3.2", "llama3.2-pythonic", "mistral-nemo", "mistral-small-3.2"),
        "granite3-tools",
    }
)
QUESTION = {"role": "user", "content": "What is the weather like?"}


class Turn(NamedTuple):
    """An assistant's turn, split as a server sees it: the end of the prompt, then what the model generated."""

    prompt_tail: str  # the generation prompt: what the template adds for the model to begin
    text: str
    end: str  # the token that ended it, not part of the text; empty: the template writes none


def source(name: str) -> str:
    """Returns the template's jinja2 source, exactly as the file has it."""
    return (FOLDER / f"{name}.jinja").read_bytes().decode()


@cache
def checkpoint_template(name: str) -> ChatTemplate:
    return ChatTemplate(source(name), SOURCES[name]["variables"])


@cache
def vocabulary(name: str) -> Vocabulary:
    """The demo's vocabulary with the added tokens of the checkpoint instead of its own."""
    model = json.loads((demo.CHECKPOINT / "tokenizer.json").read_text())
    model["added_tokens"] = []
    tokenizer = Tokenizer.from_str(json.dumps(model))
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in SOURCES[name]["added_tokens"]])
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in SOURCES[name]["special_tokens"]])
    with TemporaryDirectory() as folder:
        tokenizer.save(f"{folder}/tokenizer.json")
        return Vocabulary(Path(folder))


def markers(name: str) -> list[str]:
    """Returns the template's markers that are one added token each."""
    return [*SOURCES[name]["added_tokens"], *SOURCES[name]["special_tokens"]]


def rendered(
    name: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, *, prompt: bool = True, **kwargs: Any
) -> str:
    return checkpoint_template(name).render(
        messages, tools, kwargs, add_generation_prompt=prompt, continue_final_message=False
    )


def assistant_text(
    name: str, message: dict[str, Any], tools: list[dict[str, Any]] | None, *history: dict[str, Any], **kwargs: Any
) -> Turn:
    """Returns the turn in which the model would have generated `message` after `history` (a question, if none).

    The message is the last, because templates drop the reasoning of earlier turns. `kwargs`: variables of the template.
    Where the generation prompt begins what the message does not have, such as thinking, the text goes on from the last
    marker or character that both have in common.
    """
    earlier = list(history) or [QUESTION]
    before = _pieces(name, rendered(name, earlier, tools, prompt=False, **kwargs))
    prompt = _pieces(name, rendered(name, earlier, tools, **kwargs))
    whole = _pieces(name, rendered(name, [*earlier, message], tools, prompt=False, **kwargs))
    generated = whole[_common(prompt, whole) :]
    ends = SOURCES[name]["end_of_turn"]
    place = next((place for place, piece in enumerate(generated) if piece in ends), len(generated))
    return Turn(
        "".join(prompt[_common(before, prompt) :]), "".join(generated[:place]), "".join(generated[place : place + 1])
    )


def _pieces(name: str, text: str) -> list[str]:
    """Returns the text cut into markers and single characters."""
    known = sorted(map(re.escape, markers(name)), key=len, reverse=True)
    return re.findall("|".join([*known, "."]), text, re.DOTALL)


def _common(one: list[str], other: list[str]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
