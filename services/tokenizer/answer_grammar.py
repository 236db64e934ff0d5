"""The grammar of a request's whole answer: reasoning as an optional beginning, then tool calls, or content by its form.

One text, in which the markers that are added tokens stand by their ids, as the parser of answers finds them. It knows
no engine: whether the grammar compiles is found out afterwards.
"""

from collections.abc import Sequence

from services.grammar.fragment import Fragment, literal
from services.rpc.errors import invalid
from services.rpc.generated import text_pb2
from services.tokenizer.parsing.answer_format import AnswerFormats, Reasoning
from services.tokenizer.parsing.functions import FIELD, NO_PARAMETERS, Function, functions_of, is_enforced
from services.tokenizer.parsing.table import Table, Thinking, Write
from services.tokenizer.parsing.value_types import Tools
from services.tokenizer.parsing.written_calls import WrittenCalls, opening_texts, way_to_write
from services.tokenizer.parsing.written_text import LAYOUT, Markup, RuleBook, joined, without
from services.tokenizer.recent_grammars import AnswerGrammar, RecentGrammars
from services.tokenizer.structured.content import Content, content_fragment
from services.tokenizer.structured.settings import StructuredSettings


def grammar_field(output: text_pb2.OutputSpec) -> str:
    """Returns the client's field that asks for the grammar, for errors."""
    return (output.structured.field or "structured") if output.HasField("structured") else FIELD


def may_need_grammar(output: text_pb2.OutputSpec) -> bool:
    """Returns whether the output specification may ask for something that is enforced; it is not read for this."""
    if output.HasField("structured") or is_enforced(output):
        return True
    is_auto = output.tool_choice == text_pb2.TOOL_CHOICE_AUTO
    return is_auto and (bool(output.allowed_tools) or b'"strict"' in output.tools_json)


class AnswerGrammars:
    """Writes the grammars of one model's answers."""

    def __init__(self, formats: AnswerFormats, settings: StructuredSettings | None = None) -> None:
        self._formats = formats
        self._settings = settings or StructuredSettings()
        self._recent = RecentGrammars()

    def of_request(
        self, output: text_pb2.OutputSpec, prompt_token_ids: list[int], *, continues: bool = False
    ) -> AnswerGrammar:
        """Returns the grammar of the answers to a request that may need one. `continues`: the prompt ends within the
        content of a message, so reasoning that is not open is over.

        Raises TandemError (INVALID_ARGUMENT) with the client's field.
        """
        start = self._formats.reasoning_at(prompt_token_ids)
        if start is Reasoning.POSSIBLE and (continues or not output.separate_reasoning):
            start = Reasoning.OVER  # of completions, the whole text has the form
        asked = text_pb2.OutputSpec(
            structured=output.structured if output.HasField("structured") else None,
            tools_json=output.tools_json,
            tool_choice=output.tool_choice,
            allowed_tools=output.allowed_tools,
            single_tool_call=output.single_tool_call,
        )
        key = asked.SerializeToString(deterministic=True) + start.name.encode()
        return self._recent.get(key, lambda: self._built(output, start))

    def _built(self, output: text_pb2.OutputSpec, start: Reasoning) -> AnswerGrammar:
        content = content_fragment(output.structured, self._settings) if output.HasField("structured") else None
        table = self._formats.call_table(output)
        if table is None:
            assert content is not None
            body = Fragment(self._before_content(start, content.fragment.body), content.fragment.rules)
            ignored = content.ignored_keywords
        else:
            body, ignored = self._with_calls(table, output, content)
        if not body.body:
            return AnswerGrammar("", ignored)
        reasoning = self._reasoning(table, start)
        whole = Fragment(joined([reasoning.body, f"({body.body})"]), (*reasoning.rules, *body.rules))
        return AnswerGrammar(whole.text, ignored)

    def _before_content(self, start: Reasoning, content: str) -> str:
        """Returns content with what the model's format writes before it, where the prompt does not end within it."""
        table = self._formats.reasoning
        if table is None or not table.is_whole or start is Reasoning.OVER:
            return content
        write = way_to_write(table, self._formats.added)
        markup = Markup(table.markers.values(), self._formats.added)
        return joined([markup.expression(write.content) if write is not None else "", f"({content})"])

    def _with_calls(
        self, table: Table, output: text_pb2.OutputSpec, content: Content | None
    ) -> tuple[Fragment, tuple[str, ...]]:
        """Returns calls, or calls and what else the answer may be, and the ignored keywords. Without a body: the
        calls' format cannot be written, and nothing else is asked for."""
        functions = functions_of(output)
        write = way_to_write(table, self._formats.added)
        if not is_enforced(output):
            if not functions:
                return (content.fragment, content.ignored_keywords) if content is not None else (Fragment(""), ())
            reason = self._formats.unwritable([function for function in functions if function.strict])
            if write is not None and reason:
                raise invalid(f"tools: this model's format cannot write calls of a strict tool: {reason}", FIELD)
        if write is None:  # of the operator's own format: calls are free, and told
            ignored = tuple(f"/{FIELD}: strict" for _ in functions[:1])
            return (
                (Fragment(""), ignored)
                if content is None
                else (content.fragment, (*ignored, *content.ignored_keywords))
            )
        return self._written(table, write, output, functions, content)

    def _written(
        self,
        table: Table,
        write: Write,
        output: text_pb2.OutputSpec,
        functions: Sequence[Function],
        content: Content | None,
    ) -> tuple[Fragment, tuple[str, ...]]:
        enforced = is_enforced(output)
        by_schema = frozenset(
            one.name for one in functions if enforced or one.strict or one.parameters is NO_PARAMETERS
        )
        tools = Tools.of_json(output.tools_json)
        form = self._settings.json_form()
        calls = WrittenCalls(table, write, self._formats.added, functions, tools, by_schema, form)
        several = not output.single_tool_call and output.tool_choice != text_pb2.TOOL_CHOICE_NAMED
        ignored = calls.ignored_keywords
        if enforced:
            return Fragment(calls.calls(several=several), calls.rules), ignored
        if content is None:
            return Fragment(calls.within_text(several=several), calls.rules), ignored
        body = calls.or_content(content.fragment.body, several=several)
        return Fragment(body, (*calls.rules, *content.fragment.rules)), (*ignored, *content.ignored_keywords)

    def _reasoning(self, table: Table | None, start: Reasoning) -> Fragment:
        """Returns the answer's reasoning and what the format writes behind it."""
        reasoning = self._formats.reasoning
        thinking = reasoning.thinking if reasoning is not None else None
        if reasoning is None or thinking is None or start in (Reasoning.UNKNOWN, Reasoning.OVER):
            return Fragment("")
        book, markup = RuleBook("reasoning"), Markup(reasoning.markers.values(), self._formats.added)
        openings = opening_texts(table, self._formats.added) if table is not None else []
        write = way_to_write(reasoning, self._formats.added)
        again = markup.expression(write.again) if write is not None else ""
        text = joined([self._thoughts(thinking, markup, book, openings), again or f"{book.terminal(LAYOUT)}?"])
        begun = book.rule(joined([markup.expression(thinking.start), text]))
        if start is Reasoning.OPEN:
            body = joined([book.rule(text), f"{begun}*" if again else ""])
        else:
            body = f"{begun}{'*' if again else '?'}"
        return Fragment(body, book.rules)

    @staticmethod
    def _thoughts(thinking: Thinking, markup: Markup, book: RuleBook, openings: Sequence[str]) -> str:
        """Returns the text of reasoning and its end. The text does not begin calls."""
        end, *rest = markup.pieces(thinking.end)
        behind = [piece.expression for piece in rest]
        if end.token_id >= 0:
            return joined([book.terminal(without(openings)), end.expression, *behind])
        text = without([*openings, end.text])
        return joined([book.terminal(f"({text}) {literal(end.text)}"), *behind])
