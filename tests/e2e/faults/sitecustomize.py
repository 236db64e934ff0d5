"""On the path of a server under test: processes of one role exit at a prompt that starts with a certain token, the
preparer's at a grammar with so many characters.

TANDEM_TEST_POISON is ROLE:TOKEN_ID.
"""

import importlib
import importlib.abc
import os
import sys

# Role -> a module of that process alone; module, class and method that meet a prompt or grammar; its token or length.
PLACES = {
    "worker": (
        "services.worker.model_runner",
        "services.worker.input_batch",
        "InputBatch",
        "_add",
        lambda batch, request: int.from_bytes(request.prompt_token_ids[:4], "little"),
    ),
    "preparer": (
        "services.worker.preparer",
        "services.worker.grammar_source",
        "GrammarSource",
        "matcher",
        lambda source, grammar: len(grammar),
    ),
    "engine": (
        "services.engine.busy_loop",
        "engine_core.kv_cache_manager",
        "KVCacheManager",
        "find_cached",
        lambda manager, request: request.token_ids[0],
    ),
    "tokenizer": (
        "services.tokenizer.service",
        "services.tokenizer.text_request",
        "TextRequest",
        "start",
        lambda request: request._prompt[0],
    ),
}
ROLE, _, POISON = os.environ.get("TANDEM_TEST_POISON", "").partition(":")


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):  # type: ignore[no-untyped-def]
        trigger, module, kind, method, first_token = PLACES[ROLE]
        if name != trigger:
            return
        sys.meta_path.remove(self)
        poisoned = getattr(importlib.import_module(module), kind)
        healthy = getattr(poisoned, method)

        def fatal(*args):  # type: ignore[no-untyped-def]
            if first_token(*args) == int(POISON):
                os._exit(9)
            return healthy(*args)

        setattr(poisoned, method, fatal)
        return


if ROLE:
    sys.meta_path.insert(0, _Finder())
