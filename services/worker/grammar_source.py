"""Makes matchers for the loaded model: its vocabulary in the form that grammars need, read once at load."""

from collections.abc import Iterable

from llguidance import LLTokenizer

from engine_core.step_plan import ITEM_BYTES
from engine_core.worker_messages import Prepare, Prepared
from services.grammar.errors import GrammarError
from services.grammar.matcher import Matcher
from services.grammar.tokens import grammar_tokens
from services.worker.checkpoint import Checkpoint
from services.worker.grammar_rows import grammar_fault
from services.worker.prepared_grammars import PreparedGrammars


class GrammarSource:
    def __init__(self, checkpoint: Checkpoint, vocab_size: int) -> None:
        """`vocab_size` is the width of the logits. A vocabulary that does not support grammars is no error here.

        Raises ModelError for bad end tokens in the checkpoint.
        """
        self._tokens: LLTokenizer | None = None
        self._error = ""
        try:
            self._tokens = grammar_tokens(checkpoint.path, vocab_size, checkpoint.eos_token_ids(vocab_size))
        except GrammarError as error:
            self._error = str(error)

    def matcher(self, grammar: str) -> Matcher:
        """Compiles a grammar. Raises GrammarError, for every grammar if the vocabulary does not support any."""
        if self._tokens is None:
            raise GrammarError(self._error)
        return Matcher(self._tokens, grammar)


def prepare(
    message: Prepare, source: GrammarSource, grammars: PreparedGrammars, output_token_ids: Iterable[int]
) -> Prepared:
    """Adds what is asked for to `grammars` and returns the answer. `output_token_ids` are those of the message."""
    try:
        matcher = source.matcher(message.grammar)
        matcher.replay(output_token_ids)
        if not matcher.is_complete:
            matcher.look_ahead()  # no step waits for the first mask
    except GrammarError as error:
        return Prepared(message.epoch, message.handle, grammar_fault(error).message)
    grammars.add(message.handle, matcher, len(message.output_token_ids) // ITEM_BYTES)
    return Prepared(message.epoch, message.handle, is_complete=matcher.is_complete)
