"""The numerics id differs between kernels that may give other bits."""

from pathlib import Path

from kernels.cpu import library
from services.options.declarations import WorkerOptions
from services.worker.facts import model_facts
from services.worker.kv_cache import KvCacheShape
from services.worker.loading import load_model


def test_each_variant_has_its_numerics_id(path: Path) -> None:
    """The default has the id of the fastest variant by name."""
    runnable = library.runnable_variants()
    ids = []
    for variant in (None, *runnable):
        options = WorkerOptions(model=str(path), device="cpu", cpu_kernels=variant)
        ids.append(model_facts(load_model(path, options), options, KvCacheShape(8, 16, 128)).numerics_id)
    assert ids[0] == ids[1] and len(set(ids)) == len(runnable)
