"""The limits of a grammar, in llguidance's own counts. Tokenizer and worker have the same ones.

No limit is a time: whether a grammar is refused, or an answer ends with an error, must not depend on the load. All are
below llguidance's defaults (https://github.com/guidance-ai/llguidance, `ParserLimits`).
"""

from llguidance import LLParserLimits

MAX_GRAMMAR_BYTES = 4 * 2**20  # of a grammar's text

# Measured with 352 schemas on 131,072 tokens, 23 of them of build systems and up to 190 KB: they need at most 70,000
# fuel at the start, 20,000 fuel and 3,300 items per mask, and 400 items at one byte (all but two of them 150). An item
# takes the longer, the more there are at its byte: at llguidance's defaults an ambiguous grammar takes 300 ms per mask
# and more, at these limits 5 ms. `python -m loadtest.studies.grammar_limits` measures it.
LIMITS = LLParserLimits(
    max_items_in_row=400,  # Earley items at one byte
    initial_lexer_fuel=200_000,  # for the regular expressions, at the start
    step_lexer_fuel=100_000,  # for them, per mask; the texts in Qwen3-Coder's calls need 40,000 to 50,000
    step_max_items=4_000,  # Earley items per mask
    max_lexer_states=125_000,  # of one answer, over all its tokens
    max_grammar_size=250_000,  # symbols
)
