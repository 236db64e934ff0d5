"""Without a GPU, Triton kernels run through Triton's interpreter; the choice must be made before Triton is imported."""

from pathlib import Path

from tests.interpreter import interpret

if not Path("/dev/nvidiactl").exists():
    interpret()
