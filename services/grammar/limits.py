"""The limits of a grammar, in llguidance's own counts. Tokenizer and worker have the same ones.

No limit is a time: whether a grammar is refused, or an answer ends with an error, must not depend on the load. All are
below llguidance's defaults (https://github.com/guidance-ai/llguidance, `ParserLimits`).
"""

from llguidance import LLParserLimits

MAX_GRAMMAR_BYTES = 4 * 2**20  # of a grammar's text

LIMITS = LLParserLimits(
    max_items_in_row=1_000,  # Earley items at one byte
    initial_lexer_fuel=500_000,  # for the regular expressions, at the start
    step_lexer_fuel=100_000,  # for them, per mask
    step_max_items=25_000,  # Earley items per mask
    max_lexer_states=125_000,  # of one answer, over all its tokens
    max_grammar_size=250_000,  # symbols
)
