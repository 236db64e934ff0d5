"""The grammars of the requests that this worker has: prepared ones by handle, and those of the running ones by slot.

A grammar is kept through preemption, until a plan drops its handle. The preparer adds grammars from its own thread;
only the thread that runs plans uses them.
"""

import threading

from engine_core.step_plan import ITEM_BYTES, BadMessage, NewRequest, StepPlan
from services.grammar.matcher import Matcher
from services.worker.grammar_rows import GrammarRows, PreparedGrammar
from services.worker.logits.interface import Longs
from services.worker.logits.slot_states import SlotStates


class PreparedGrammars:
    def __init__(self, max_num_seqs: int) -> None:
        self._lock = threading.Lock()
        self._prepared: dict[int, PreparedGrammar] = {}
        self._slots: SlotStates[PreparedGrammar] = SlotStates(max_num_seqs)

    def __len__(self) -> int:
        return len(self._prepared)

    def add(self, handle: int, matcher: Matcher, num_tokens: int) -> None:
        """Keeps the matcher of a request, which stands after its first `num_tokens` output tokens, until a plan drops
        it. The engine drops it only after it was told of it."""
        with self._lock:
            self._prepared[handle] = PreparedGrammar(handle, matcher, num_tokens)

    def apply(self, plan: StepPlan) -> None:
        """Drops the grammars that a plan drops, and puts those of its new requests into their slots.

        Raises BadMessage for a new request whose grammar is not prepared, has ended, or is not at its newest token, and
        for a dropped one that is not prepared.
        """
        for handle in plan.dropped_grammars:
            with self._lock:
                if self._prepared.pop(handle, None) is None:
                    raise BadMessage(f"the plan drops the grammar of request {handle}, which is not prepared")
        for request in plan.new_requests:
            self._slots.put(request.slot, self._admitted(request) if request.has_grammar else None)

    def rows(self, slots: Longs) -> GrammarRows | None:
        """Returns the rows of a step that have a grammar; None if there are none. `slots` [S]: of its sampled rows."""
        present = self._slots.present(slots)
        if not present.any():
            return None
        return GrammarRows(present.nonzero()[0], self._slots.of(slots[present]))

    def _admitted(self, request: NewRequest) -> PreparedGrammar:
        handle, num_tokens = request.handle, len(request.output_token_ids) // ITEM_BYTES
        with self._lock:
            grammar = self._prepared.get(handle)
        if grammar is None:
            raise BadMessage(f"the grammar of request {handle} is not prepared")
        if grammar.has_ended:
            raise BadMessage(f"request {handle} runs again, but its grammar has ended")
        if grammar.num_tokens != num_tokens:
            raise BadMessage(f"request {handle} has {num_tokens} output tokens, its grammar {grammar.num_tokens}")
        return grammar
