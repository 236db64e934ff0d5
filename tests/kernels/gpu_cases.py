"""What the tests of the Triton kernels share. Without a GPU the kernels run in Triton's interpreter."""

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings

CPU = torch.device("cpu")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = [torch.float32, torch.bfloat16]
# No shrinking: the interpreter is slow, and the shapes are small as they are.
few = settings(
    max_examples=6,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
)


# Of a weight, and of the activations; quantised ones in float32 with `make test-long`.
every_form = pytest.mark.parametrize(
    ("dtype", "quantization"),
    [
        *((dtype, None) for dtype in DTYPES),
        *((torch.bfloat16, name) for name in ("int8", "fp8")),
        *(pytest.param(torch.float32, name, marks=pytest.mark.long) for name in ("int8", "fp8")),
    ],
    ids=str,
)
