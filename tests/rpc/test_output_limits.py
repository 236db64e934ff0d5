"""The checks of an output specification that reaches the tokenizer."""

from typing import Any

import pytest

from services.rpc.errors import TandemError
from services.rpc.generated import text_pb2
from services.rpc.output_limits import MAX_STOP_CHARACTERS, MAX_STOP_STRINGS, check_output


@pytest.mark.parametrize("choice", text_pb2.ToolChoice.values())
def test_what_is_known_passes(choice: Any) -> None:
    check_output(text_pb2.OutputSpec(stop=["a" * MAX_STOP_CHARACTERS] * MAX_STOP_STRINGS, tool_choice=choice))


@pytest.mark.parametrize(
    ("output", "param"),
    [
        (text_pb2.OutputSpec(stop=["a"] * (MAX_STOP_STRINGS + 1)), "stop"),
        (text_pb2.OutputSpec(stop=["a" * (MAX_STOP_CHARACTERS + 1)]), "stop"),
        (text_pb2.OutputSpec(stop=[""]), "stop"),
        (text_pb2.OutputSpec.FromString(b"\x38\x4d"), "tool_choice"),  # 77, as a newer caller may send it
    ],
)
def test_what_is_refused(output: text_pb2.OutputSpec, param: str) -> None:
    with pytest.raises(TandemError) as caught:
        check_output(output)
    assert caught.value.param == param and caught.value.code == "INVALID_ARGUMENT"
