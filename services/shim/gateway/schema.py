"""The fields of vLLM's GenerateRequest that tandem has, as a request of the shim: the same names, limits and errors.

The other fields of GenerationRequest are not in that message and keep their defaults.
"""

from services.shim.apis.fields import supported
from services.shim.apis.request import GenerationRequest, TokenIds


class GatewayRequest(GenerationRequest):
    logprobs_field = "logprobs"

    prompt: str | TokenIds = supported(..., "Text, or token ids.")
    logprobs: int | None = supported(
        None, "Logprobs of the answer's tokens, and of this many most likely tokens; -1: of all.", ge=-1
    )

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs
