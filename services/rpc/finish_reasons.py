"""The names of the finish reasons, in both directions: "stop", "length", "abort", "error".

The enum in protos/tandem/v1/common.proto declares them; answers, metrics, logs and the engine core use these names.
"""

from typing import cast

from services.rpc.generated import common_pb2 as pb

_PREFIX = "FINISH_REASON_"
REASON_BY_NAME: dict[str, pb.FinishReason] = {
    name.removeprefix(_PREFIX).lower(): cast("pb.FinishReason", value)
    for name, value in pb.FinishReason.items()
    if value
}
NAME_BY_REASON: dict[int, str] = {value: name for name, value in REASON_BY_NAME.items()}
