"""A worker that plays given tokens in place of a model's: `python -m tests.clients.player --engine ADDRESS`.

For clients with prompts that the demo model cannot follow. Shim, tokenizer and engine are the real ones; so are the
messages to the engine, and the tokens, which are the demo tokenizer's. A prompt says itself what its answers are: it
has a script (programs/played.py). So the player needs no state between requests, and resumes like a model.
"""

import argparse
import re
import signal
import sys
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from engine_core.kv_groups import FULL
from engine_core.step_plan import NewRequest, StepPlan, StepResult, pack_i32, unpack_i32
from engine_core.worker_messages import ModelFacts
from services.grammar.matcher import Matcher
from services.worker.checkpoint import read_checkpoint
from services.worker.engine_link import EngineGone, EngineLink, EngineRefused
from services.worker.grammar_source import GrammarSource
from services.worker.prepared_grammars import PreparedGrammars
from services.worker.preparer import Preparer
from tests.clients.programs.played import scripted
from tests.clients.server import FOLDER, MODEL

MAX_MODEL_LEN = 2**18  # agents' prompts are long, and the demo tokenizer has 1,024 tokens only
BLOCK_SIZE = 16
SIDE_ANSWER = "A title"  # to a prompt without a script, or without tools: clients have their sessions named
TURN = "<|im_start|>assistant\n"  # of the demo's template, as are the next two
TOOLS = "</tools>"
RESULT = re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.DOTALL)


def answer_to(prompt: str) -> str:
    """Returns the answer to a prompt, with its special tokens."""
    found = scripted(prompt)
    if found is None or TOOLS not in prompt:
        return SIDE_ANSWER
    answers, end = found
    # The last turn is the one that the answer is for.
    turn = prompt.count(TURN, end) - 1
    if not 0 <= turn < len(answers):
        return f"The script has no turn {turn + 1}."
    results = RESULT.findall(prompt, end)
    return answers[turn].replace("{result}", results[-1] if results else "")


@dataclass
class Played:
    handle: int
    token_ids: list[int]  # the answer with its end token


class Player:
    """Answers plans as a worker does. Its state is made from the plans alone."""

    def __init__(self, tokenizer: Tokenizer, eos_token_id: int) -> None:
        self._tokenizer = tokenizer
        self._eos_token_id = eos_token_id
        self._slots: dict[int, Played] = {}

    def execute(self, plan: StepPlan) -> StepResult:
        if plan.base_step_id is None:
            self._slots.clear()
        for slot in plan.released_slots:
            del self._slots[slot]
        for new in plan.new_requests:
            self._slots[new.slot] = self._played(new)
        rows = zip(
            unpack_i32(plan.slots).tolist(),
            unpack_i32(plan.output_indices).tolist(),
            unpack_i32(plan.sampled).tolist(),
            strict=True,
        )
        played = [(self._slots[slot], index) for slot, index, sampled in rows if sampled]
        return StepResult(
            epoch=plan.epoch,
            step_id=plan.step_id,
            handles=pack_i32([one.handle for one, _ in played]),
            start_indices=pack_i32([index for _, index in played]),
            counts=pack_i32([1] * len(played)),
            token_ids=pack_i32([self._token_id(one, index) for one, index in played]),
            logprob_widths=pack_i32([0] * len(played)),
            logprob_token_ids=b"",
            logprobs=np.array([], dtype="<f4").tobytes(),
        )

    def _played(self, new: NewRequest) -> Played:
        prompt = self._tokenizer.decode(unpack_i32(new.prompt_token_ids).tolist(), skip_special_tokens=False)
        answer = self._tokenizer.encode(answer_to(prompt), add_special_tokens=False).ids
        return Played(new.handle, [*answer, self._eos_token_id])

    @staticmethod
    def _token_id(played: Played, index: int) -> int:
        return played.token_ids[min(index, len(played.token_ids) - 1)]


class Unused(PreparedGrammars):
    """Grammars are compiled, as the engine waits for that, and dropped: what is played has no distribution to mask."""

    def add(self, handle: int, matcher: Matcher, num_tokens: int) -> None:
        pass


def grammar_source() -> GrammarSource:
    checkpoint = read_checkpoint(FOLDER, {}, "auto")
    return GrammarSource(checkpoint, int(checkpoint.config["vocab_size"]))


def facts() -> tuple[ModelFacts, int]:
    """Returns (the facts of the demo model with a long context, the id of its end token)."""
    checkpoint = read_checkpoint(FOLDER, {}, "auto")
    vocab_size = int(checkpoint.config["vocab_size"])
    eos_token_ids = checkpoint.eos_token_ids(vocab_size)
    found = ModelFacts(
        served_model_names=(MODEL,),
        max_model_len=MAX_MODEL_LEN,
        vocab_size=vocab_size,
        eos_token_ids=eos_token_ids,
        block_size=BLOCK_SIZE,
        num_blocks=4 * MAX_MODEL_LEN // BLOCK_SIZE,
        kv_groups=(FULL,),
        max_logprobs=0,
        sampling_defaults=checkpoint.sampling_defaults,
        tokenizer_digest=checkpoint.tokenizer_digest(),
        numerics_id="played",
        weights_version="played",
    )
    return found, eos_token_ids[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", required=True, help="the engine's socket for its worker, ipc://PATH")
    endpoint = parser.parse_args().engine
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    model, eos_token_id = facts()
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    source = grammar_source()
    while True:
        link = EngineLink(endpoint)
        preparer = None
        try:
            link.hello()
            link.limits()
            link.register(model)
            preparer = Preparer(link, source, Unused(0))
            player = Player(tokenizer, eos_token_id)
            while True:
                link.done(player.execute(link.next_plan()))
        except EngineRefused:
            raise
        except EngineGone:
            continue  # with the next engine
        finally:
            if preparer is not None:
                preparer.close()
            link.close()


if __name__ == "__main__":
    sys.exit(main())
