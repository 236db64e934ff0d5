"""Without a GPU, Triton kernels run through Triton's interpreter; the choice must be made before Triton is imported."""

import os
from pathlib import Path

if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"
