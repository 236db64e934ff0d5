"""Which command needs which optional part of the package (an extra of pyproject.toml), and whether it is installed.

Looks for modules without importing them: the launcher never loads torch.
"""

from importlib.util import find_spec

_COMMANDS = {
    "serve": "worker",
    "worker": "worker",
    "bench serve": "bench",
    "bench latency": "bench",
    "bench throughput": "bench",
    "bench sweep": "bench",
    "bench kernels": "worker",
}
# Without triton, which exists for Linux only, the worker runs on a CPU. Without matplotlib, only plots are refused.
_MODULES = {"worker": ("torch", "safetensors"), "bench": ("aiohttp", "tqdm")}


def missing(command: str) -> str | None:
    """Returns one line on what `command` lacks and how to install it; None if it can run."""
    extra = _COMMANDS.get(command)
    lacking = [name for name in _MODULES.get(extra or "", ()) if find_spec(name) is None]
    if not lacking:
        return None
    return f"this command needs {' and '.join(lacking)}: pip install 'tandem-llm[{extra}]'"
