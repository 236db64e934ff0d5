"""How the answers of one model are divided into content, reasoning and tool calls; a parser for each choice."""

import asyncio
import functools
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

from services.rpc.columns import pack_u32
from services.rpc.errors import invalid
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import text_pb2
from services.tokenizer.parsing.calls import PieceWriter
from services.tokenizer.parsing.fallback_tables import NAMED, REQUIRED, named_table, required_table
from services.tokenizer.parsing.functions import Function, functions_of, is_enforced
from services.tokenizer.parsing.grammar import Grammar, Start, build_grammar
from services.tokenizer.parsing.output_parser import OutputParser
from services.tokenizer.parsing.table import Read, Table
from services.tokenizer.parsing.value_types import Tools
from services.tokenizer.parsing.written_arguments import unwritable
from services.tokenizer.parsing.written_calls import way_to_write
from services.tokenizer.vocabulary import Vocabulary

ID_LENGTHS = {"openai": ("call_", 24), "mistral": ("", 9)}  # prefix, and number of letters and digits behind it
INLINE_TOKENS = 4096  # of a prompt, and
INLINE_BYTES = 65536  # of tools, that are read on the event loop
LETTERS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


class CallIds:
    """Makes the ids of a request's tool calls: a function of its prompt, its seed, the choice and the call's number.

    So a resumed answer has the same ids, and the next turn of a dialogue has others.
    """

    def __init__(self, prompt_token_ids: list[int], style: str) -> None:
        self._prompt = prompt_token_ids
        self._prefix, self._length = ID_LENGTHS[style]
        self.seed = 0  # the request's, once it is known

    def call_id(self, choice: int, number: int) -> str:
        key = f"{self.seed} {choice} {number} ".encode() + self._digest
        value = int.from_bytes(hashlib.sha256(key).digest(), "little")
        return self._prefix + "".join(LETTERS[value // 62**place % 62] for place in range(self._length))

    @functools.cached_property
    def _digest(self) -> bytes:
        return hashlib.sha256(pack_u32(self._prompt)).digest()


@dataclass(frozen=True)
class RequestFormat:
    """What a request's choices are divided by."""

    grammar: Grammar
    start: Start
    tools: Tools
    ids: CallIds
    single_call: bool

    def parser(self, choice: int) -> tuple[OutputParser, PieceWriter]:
        writer = PieceWriter(functools.partial(self.ids.call_id, choice))
        return OutputParser(self.grammar, self.start, self.tools, writer, single_call=self.single_call), writer


class Reasoning(Enum):
    """What an answer's beginning is, by the prompt's end."""

    UNKNOWN = "the format of the model's reasoning is not known"
    POSSIBLE = "reasoning, or what follows it"
    OPEN = "reasoning"
    OVER = "what follows reasoning"


@dataclass(frozen=True)
class AnswerPlan:
    """What becomes of a request's answers. `format` None: all of them is content. `thinking_budget`: for the engine."""

    format: RequestFormat | None
    parses_calls: bool
    thinking_budget: pb.ThinkingBudget | None


class AnswerFormats:
    """The formats of one model, by what a request asks for."""

    def __init__(self, vocabulary: Vocabulary, tools: Table | None, reasoning: Table | None) -> None:
        """`tools`, `reasoning`: None where the model's format is not known, or the operator wants none."""
        self._vocabulary = vocabulary
        self._tools = tools
        self.reasoning = reasoning
        # Also for calls that the operator wants no format for, if reasoning and calls have one together.
        self._native = reasoning if tools is None and reasoning is not None and reasoning.is_whole else tools
        added = vocabulary.tokenizer.get_added_tokens_decoder()
        self.added = {token.content: token_id for token_id, token in added.items()}
        self._special = frozenset(token_id for token_id, token in added.items() if token.special)
        self._grammar = functools.lru_cache(maxsize=64)(self._new_grammar)

    def plan(self, output: text_pb2.OutputSpec, prompt_token_ids: list[int]) -> AnswerPlan:
        """Returns what becomes of the answers to a request. Raises as `of_request` and `thinking_budget`."""
        return AnswerPlan(
            self.of_request(output, prompt_token_ids),
            output.tool_choice != text_pb2.TOOL_CHOICE_NONE,
            self.thinking_budget(output, prompt_token_ids),
        )

    async def plan_aside(self, output: text_pb2.OutputSpec, prompt_token_ids: list[int]) -> AnswerPlan:
        """As `plan`; in a thread where much is to be read, so that the event loop goes on."""
        if len(prompt_token_ids) <= INLINE_TOKENS and len(output.tools_json) <= INLINE_BYTES:
            return self.plan(output, prompt_token_ids)
        return await asyncio.to_thread(self.plan, output, prompt_token_ids)

    def of_request(self, output: text_pb2.OutputSpec, prompt_token_ids: list[int]) -> RequestFormat | None:
        """Returns the format of a request's answers; None where all of them is content.

        Raises TandemError (INVALID_ARGUMENT) for calls in a format that is not known, ValueError for malformed tools.
        """
        calls = self.call_table(output)
        reasoning = self.reasoning is not None and (output.separate_reasoning or is_enforced(output))
        if calls is None and not reasoning:
            return None
        grammar = self._grammar(_kind(calls, output), reasoning)
        tools = Tools.of_json(output.tools_json if calls is not None else b"")
        style = self._tools.call_ids if self._tools is not None else "openai"
        start = self._start(grammar, prompt_token_ids)
        if output.HasField("structured") and start.node.read is not Read.REASONING:
            start = replace(start, fresh=False)  # its form says which whitespace it begins with
        return RequestFormat(
            grammar,
            start,
            tools,
            CallIds(prompt_token_ids, style),
            output.single_tool_call or output.tool_choice == text_pb2.TOOL_CHOICE_NAMED,
        )

    def call_table(self, output: text_pb2.OutputSpec) -> Table | None:
        """Returns the format of a request's calls: the model's, or, for enforced calls that it cannot say, one of
        fallback_tables.py; None without calls. Raises as `of_request`."""
        if output.tool_choice == text_pb2.TOOL_CHOICE_NONE:
            return None
        if not is_enforced(output):
            if self._tools is None:
                raise invalid(
                    'tool_choice "auto": the format of this model\'s tool calls is not known; its operator can name it'
                    " with --tool-call-parser",
                    "tool_choice",
                )
            return self._tools
        functions = functions_of(output)
        reason = self.unwritable(functions)
        if not reason:
            return self._native
        if self._native is not None and self._native.is_whole:
            raise invalid(f"tools: this model's format cannot write these calls: {reason}", "tools")
        if output.tool_choice == text_pb2.TOOL_CHOICE_NAMED:
            return named_table(functions[0].name)
        return required_table()

    def unwritable(self, functions: list[Function]) -> str:
        """Returns why the model's format cannot write calls of these functions by their schemas; empty: it can."""
        write = way_to_write(self._native, self.added) if self._native is not None else None
        if write is None:
            return "how the model writes calls is not known"
        reasons = ((function.name, unwritable(write, function)) for function in functions)
        return next((f"{name}: {reason}" for name, reason in reasons if reason), "")

    def reasoning_at(self, prompt_token_ids: list[int]) -> Reasoning:
        """Returns whether answers to this prompt begin with reasoning."""
        thinking = self.reasoning.thinking if self.reasoning is not None else None
        if thinking is None:
            return Reasoning.UNKNOWN
        grammar = self._grammar("", True)
        start = self._start(grammar, prompt_token_ids)
        if start.node.read is Read.REASONING:
            return Reasoning.OPEN
        is_whole = self.reasoning is not None and self.reasoning.is_whole
        has_begun = start.node is grammar.content if is_whole else False
        pieces = self._pieces(grammar, prompt_token_ids)
        if thinking.end in self.added:  # as text, it is the text of a message
            ended = any(thinking.end == marker for marker, _ in pieces)
        else:
            ended = any(thinking.end in (marker or text) for marker, text in pieces)
        return Reasoning.OVER if ended or has_begun else Reasoning.POSSIBLE

    def thinking_budget(self, output: text_pb2.OutputSpec, prompt_token_ids: list[int]) -> pb.ThinkingBudget | None:
        """Returns the budget of reasoning that the engine enforces; None without one.

        Raises TandemError (INVALID_ARGUMENT) if the model's format of reasoning is not known.
        """
        if not output.HasField("thinking_token_budget"):
            return None
        thinking = self.reasoning.thinking if self.reasoning is not None else None
        if thinking is None:
            raise invalid(
                "thinking_token_budget: the format of this model's reasoning is not known; its operator can name it"
                " with --reasoning-parser",
                "thinking_token_budget",
            )
        start = self._start(self._grammar("", True), prompt_token_ids)
        return pb.ThinkingBudget(
            max_tokens=output.thinking_token_budget,
            start_token_ids=pack_u32(self._ids(thinking.start)),
            end_token_ids=pack_u32(self._ids(thinking.end)),
            starts_open=start.node.read is Read.REASONING,
        )

    def _ids(self, text: str) -> list[int]:
        return self._vocabulary.encode(text, add_special_tokens=False)

    def _new_grammar(self, calls: str, reasoning: bool) -> Grammar:
        """`calls`: a `_kind`."""
        table = self._native
        if calls == REQUIRED:
            table = required_table()
        elif calls.startswith(NAMED):
            table = named_table(calls.removeprefix(f"{NAMED} "))
        return build_grammar(table if calls else None, self.reasoning if reasoning else None, self.added, self._special)

    def _start(self, grammar: Grammar, prompt_token_ids: list[int]) -> Start:
        """Returns where answers begin: the end of the prompt is read like the beginning of the answer, from the first
        marker of its last message on. Many templates end the prompt with <think>."""
        start = Start(grammar.start, fresh=grammar.start.read is Read.REASONING)
        parser = OutputParser(grammar, start, Tools([]), PieceWriter(str))
        for marker, text in _from_first_marker(grammar, self._pieces(grammar, prompt_token_ids)):
            if marker:
                parser.marker(marker, text)
            else:
                parser.text(text)
        return parser.start if parser.can_start else start

    def _pieces(self, grammar: Grammar, prompt_token_ids: list[int]) -> list[tuple[str, str]]:
        """Returns the markers and the texts of the prompt's last message."""
        first = len(prompt_token_ids)
        while first > 0:
            first -= 1
            if prompt_token_ids[first] in grammar.turn_ids:
                break
        pieces, text = [], []
        for token_id in prompt_token_ids[first:]:
            marker = grammar.marker_ids.get(token_id)
            if marker is None:
                text.append(token_id)
                continue
            pieces += [("", self._decoded(text)), (marker, marker)]
            text = []
        return [*pieces, ("", self._decoded(text))]

    def _decoded(self, token_ids: list[int]) -> str:
        return str(self._vocabulary.tokenizer.decode(token_ids, skip_special_tokens=True))


def _kind(table: Table | None, output: text_pb2.OutputSpec) -> str:
    """Returns a name for the format of the calls; empty without calls."""
    if table is None or table.name not in (REQUIRED, NAMED):
        return "native" if table is not None else ""
    return REQUIRED if table.name == REQUIRED else f"{NAMED} {functions_of(output)[0].name}"


def _from_first_marker(grammar: Grammar, pieces: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    found = False
    for marker, text in pieces:
        if not found and not marker:
            places = [place for one in grammar.text_markers if (place := text.find(one)) >= 0]
            found = bool(places)
            text = text[min(places) :] if places else ""
        found = found or bool(marker)
        if marker or text:
            yield marker, text
