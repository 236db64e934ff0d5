"""`python -m loadtest.studies.parsing`: what dividing an answer into reasoning, content and tool calls costs per token.

For each format: microseconds per token of four characters, for content, reasoning, and a call's arguments, as one long
text and as many short values. The detokenizer is not part of it. Prints the fastest of several rounds, because other
programs only make a round slower, and the processor's name. Takes a minute.
"""

import sys
import time

from services.machine import cpu_model
from services.tokenizer.parsing.calls import PieceWriter
from services.tokenizer.parsing.catalog import built_in
from services.tokenizer.parsing.grammar import Start, build_grammar
from services.tokenizer.parsing.output_parser import OutputParser
from services.tokenizer.parsing.value_types import Tools

ROUNDS, TOKENS, LENGTH = 7, 4000, 4
PROSE = 'The weather in Paris is fine, [1] says a <b>page</b> of today: 21 °C {at noon}, "sunny" and it\'s dry. '
WORDS = "Take the umbrella along, it may rain at night in the mountains; "
NUMBERS = ", ".join(f'"k{index}": [{index}, true, "v{index}"]' for index in range(20))
TOOLS = Tools(
    [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"n": {"type": "integer"}}}}}]
)
JSON_CALLS = {
    "hermes": '<tool_call>\n{"name": "f", "arguments": {',
    "llama3_json": '{"name": "f", "parameters": {',
    "mistral": "[TOOL_CALLS]f[ARGS]{",
    "granite": '<|tool_call|>[{"name": "f", "arguments": {',
    "phi4_mini_json": 'functools[{"name": "f", "arguments": {',
    "openai": "<|channel|>commentary to=functions.f<|message|>{",
}
PARAMETERS = {  # what opens the call, opens a parameter, and stands between its name and value, and behind it
    "qwen3_coder": ("<tool_call>\n<function=f>\n", "<parameter=", ">\n", "\n</parameter>\n"),
    "glm45": ("<tool_call>f\n", "<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"),
    "minimax_m2": ('<minimax:tool_call>\n<invoke name="f">\n', '<parameter name="', '">', "</parameter>\n"),
}
REASONING = {
    "qwen3": "<think>\n", "deepseek_r1": "", "mistral": "[THINK]", "granite": "Here is my thought process:",
    "openai_gptoss": "<|channel|>analysis<|message|>", "seed_oss": "<seed:think>",
}  # fmt: skip


def cases() -> list[tuple[str, str, str | None, str | None, str, str]]:
    """Returns (format, what, tool format, reasoning format, what comes first, the text that is measured)."""
    found: list[tuple[str, str, str | None, str | None, str, str]] = []
    for name in (*JSON_CALLS, *PARAMETERS, "pythonic"):
        first = "<|channel|>final<|message|>" if name == "openai" else "A "
        found.append((name, "content", name, None, first, PROSE))
    for name, call in JSON_CALLS.items():
        found.append((name, "JSON, one text", name, None, call + '"s": "', WORDS))
        found.append((name, "JSON, short values", name, None, call, NUMBERS + ", "))
    for name, (call, key, between, end) in PARAMETERS.items():
        found.append((name, "one text value", name, None, f"{call}{key}s{between}", WORDS))
        found.append((name, "short values", name, None, call, f"{key}s{between}text{end}{key}n{between}12{end}"))
    found.append(("pythonic", "one text value", "pythonic", None, '[f(s="', WORDS))
    found.append(("pythonic", "short values", "pythonic", None, "[f(a=1, ", "k=[1, True, 'v'], "))
    found += [(name, "reasoning", None, name, opens, PROSE) for name, opens in REASONING.items()]
    return found


def microseconds(tools: str | None, reasoning: str | None, first: str, text: str) -> float:
    """Returns the time per token of a text behind `first`; the markers are ordinary text, the slower way."""
    catalog = built_in()
    grammar = build_grammar(
        catalog.tools[tools] if tools else None, catalog.reasoning[reasoning] if reasoning else None, {}, ()
    )
    whole = text * (1 + TOKENS * LENGTH // len(text))
    tokens = [whole[at : at + LENGTH] for at in range(0, TOKENS * LENGTH, LENGTH)]
    best = float("inf")
    for _ in range(ROUNDS):
        writer = PieceWriter(str)
        parser = OutputParser(grammar, Start(grammar.start), TOOLS, writer)
        parser.text(first)
        began = time.process_time()
        for token in tokens:
            parser.text(token)
            writer.take()
        best = min(best, time.process_time() - began)
    return best / len(tokens) * 1e6


def main() -> int:
    sys.stdout.write(f"{cpu_model()}, one thread, microseconds per token of {LENGTH} characters\n")
    for name, what, tools, reasoning, first, text in cases():
        sys.stdout.write(f"{name:16} {what:20} {microseconds(tools, reasoning, first, text):5.2f}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
