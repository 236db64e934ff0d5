"""On the path of a server under test: its worker ends at once at a prompt that begins with the poisonous token."""

import importlib.abc
import os
import sys

POISON = os.environ.get("TANDEM_TEST_POISON")


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):  # type: ignore[no-untyped-def]
        if name != "services.worker.model_runner":
            return
        sys.meta_path.remove(self)
        import services.worker.input_batch as batch

        add = batch.InputBatch._add

        def poisoned(self, request):  # type: ignore[no-untyped-def]
            if request.prompt_token_ids[:4] == int(POISON).to_bytes(4, "little"):
                os._exit(9)
            add(self, request)

        batch.InputBatch._add = poisoned
        return


if POISON:
    sys.meta_path.insert(0, _Finder())
