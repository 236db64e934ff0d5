"""Names and shapes are those of the checkpoints that transformers writes."""

import math

import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from services.worker.models.describe import describe
from services.worker.models.fused_experts import split
from services.worker.models.tensors import num_weight_bytes, parameter_shapes
from services.worker.weights import plain_name
from tests.worker.models.parity_cases import BASE, CASES, Case


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_names_and_shapes_are_those_of_transformers(case: Case) -> None:
    config = AutoConfig.for_model(case.model_type, **{**BASE, **case.config})
    model = AutoModelForCausalLM.from_config(config)
    written = {**config.to_dict(), "architectures": [type(model).__name__]}
    description = describe(written, case.max_model_len)
    found = dict(model.named_parameters())  # a tied head once
    found |= {name: buffer for name, buffer in model.named_buffers() if name.endswith("correction_bias")}
    plain = ((plain_name(name, description.names), tensor) for name, tensor in found.items())
    parts = (part for name, tensor in plain for part in split(name, tensor, description.names))
    shapes = parameter_shapes(description)
    assert shapes == {name: tuple(tensor.shape) for name, tensor in parts}
    elements = sum(map(math.prod, shapes.values()))
    assert num_weight_bytes(describe(written, case.max_model_len), 4, 4) == 4 * elements
