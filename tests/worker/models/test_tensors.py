"""Names and shapes are those of the checkpoints that transformers writes."""

import math

import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from services.worker.models.describe import describe
from services.worker.models.tensors import num_weight_bytes, parameter_shapes
from tests.worker.models.parity_cases import BASE, CASES, Case


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_names_and_shapes_are_those_of_transformers(case: Case) -> None:
    config = AutoConfig.for_model(case.model_type, **{**BASE, **case.config})
    model = AutoModelForCausalLM.from_config(config)
    expected = {name: tuple(tensor.shape) for name, tensor in model.named_parameters()}  # a tied head once
    written = {**config.to_dict(), "architectures": [type(model).__name__]}
    shapes = parameter_shapes(describe(written, case.max_model_len))
    assert shapes == expected
    elements = sum(map(math.prod, shapes.values()))
    assert num_weight_bytes(describe(written, case.max_model_len), 4, 4) == 4 * elements
