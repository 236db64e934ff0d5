"""Protobuf, the engine core and the metrics use the same names of finish reasons."""

from typing import get_args

from engine_core.request import FinishReason
from services.rpc.finish_reasons import NAME_BY_REASON, REASON_BY_NAME
from services.rpc.generated import common_pb2 as pb


def test_the_engine_core_has_the_reasons_of_the_protobuf_enum() -> None:
    assert set(get_args(FinishReason)) == set(REASON_BY_NAME)


def test_both_directions_agree() -> None:
    assert {value: name for name, value in REASON_BY_NAME.items()} == NAME_BY_REASON
    assert pb.FINISH_REASON_UNSPECIFIED not in NAME_BY_REASON
