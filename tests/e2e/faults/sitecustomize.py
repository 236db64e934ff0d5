"""On the path of a server under test: processes of one role exit, or hang, at a prompt that starts with a certain
token, the preparer's at a grammar with so many characters.

TANDEM_TEST_POISON is KIND:TOKEN_ID, where KIND is one of PLACES: a role, and behind a dash when and how, if not at the
request's start and by an exit. LATER is the output length at which the later ones happen.
"""

import importlib
import importlib.abc
import os
import sys
import threading

LATER = 20


def first_of(batch, slot):  # type: ignore[no-untyped-def]
    return int(batch.token_ids[slot, 0])


def in_worker(batch, request):  # type: ignore[no-untyped-def]
    return int.from_bytes(request.prompt_token_ids[:4], "little")


def late_in_worker(batch, plan, slots):  # type: ignore[no-untyped-def]
    """Its prompt has five tokens."""
    return max([first_of(batch, slot) for slot in slots if batch.num_tokens[slot] == 5 + LATER], default=0)


def again_in_worker(batch, plan, slots):  # type: ignore[no-untyped-def]
    """In the process's LATERth step with such a request: each process makes some progress."""
    counted.extend(slot for slot in slots if first_of(batch, slot) == int(POISON))
    return int(POISON) if len(counted) >= LATER else 0


def late_in_engine(scheduler, result):  # type: ignore[no-untyped-def]
    """When the scheduler is to take the next token of a request that has LATER."""
    handles = memoryview(result.handles).cast("i").tolist()
    met = [one for one in scheduler.running if one.handle in handles and one.num_output_tokens >= LATER]
    return max([one.token_ids[0] for one in met], default=0)


def in_tokenizer(request):  # type: ignore[no-untyped-def]
    return request._prompt[0]


def late_in_tokenizer(request, handle, start_index, token_ids, logprobs):  # type: ignore[no-untyped-def]
    return request._prompt[0] if start_index + len(token_ids) > LATER else 0


def in_tokenize(encoder, submit):  # type: ignore[no-untyped-def]
    """The text that starts with the token's number."""
    return int(submit.text.text[:3]) if submit.text.text[:3].isdigit() else 0


RUNNER, BATCH = "services.worker.model_runner", ("services.worker.input_batch", "InputBatch")
LOOP, SERVICE = "services.engine.busy_loop", "services.tokenizer.service"
ENCODER = ("services.tokenizer.prompt_encoder", "PromptEncoder")
REQUEST = ("services.tokenizer.text_request", "TextRequest")
MANAGER, SCHEDULER = ("engine_core.kv_cache_manager", "KVCacheManager"), ("engine_core.scheduler", "Scheduler")
GRAMMARS = ("services.worker.grammar_source", "GrammarSource")
# Kind -> a module of that process alone; class and method that meet a prompt or grammar; its token or length.
PLACES = {
    "worker": (RUNNER, *BATCH, "_add", in_worker),
    "worker-hangs": (RUNNER, *BATCH, "_add", in_worker),
    "worker-later": (RUNNER, *BATCH, "_inputs", late_in_worker),
    "worker-again": (RUNNER, *BATCH, "_inputs", again_in_worker),
    "preparer": ("services.worker.preparer", *GRAMMARS, "matcher", lambda source, grammar: len(grammar)),
    "engine": (LOOP, *MANAGER, "find_cached", lambda manager, request: request.token_ids[0]),
    "engine-later": (LOOP, *SCHEDULER, "update", late_in_engine),
    "tokenizer": (SERVICE, *REQUEST, "start", in_tokenizer),
    "tokenizer-hangs": (SERVICE, *REQUEST, "start", in_tokenizer),
    "tokenizer-later": (SERVICE, *REQUEST, "tokens", late_in_tokenizer),
    "tokenizer-tokenize": (SERVICE, *ENCODER, "encode", in_tokenize),
}
counted = []  # an item for each step and poisonous request of again_in_worker
KIND, _, POISON = os.environ.get("TANDEM_TEST_POISON", "").partition(":")


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):  # type: ignore[no-untyped-def]
        trigger, module, kind, method, first_token = PLACES[KIND]
        if name != trigger:
            return
        sys.meta_path.remove(self)
        poisoned = getattr(importlib.import_module(module), kind)
        healthy = getattr(poisoned, method)

        def fatal(*args):  # type: ignore[no-untyped-def]
            if first_token(*args) == int(POISON):
                threading.Event().wait() if KIND.endswith("-hangs") else os._exit(9)
            return healthy(*args)

        setattr(poisoned, method, fatal)
        return


if KIND:
    sys.meta_path.insert(0, _Finder())
