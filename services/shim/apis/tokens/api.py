"""The API of /inference/v1/generate."""

from services.rpc.errors import TandemError
from services.shim.apis.api import Api
from services.shim.apis.tokens.answer import TokensAnswer, TokensResponse
from services.shim.apis.tokens.schema import TOKENS_FORM
from services.shim.apis.tokens.submit import TOKENS_TRANSLATION
from services.shim.routes import GENERATE


def _at_fault(error: TandemError) -> TandemError:
    if error.param == "prompt":
        error.param = "token_ids"
    return TOKENS_FORM.located(error)


TOKENS_API = Api(
    path=GENERATE,
    summary="Continues token ids; the answer is token ids.",
    operation="text_completion",
    id_prefix="generate-tokens-",
    translation=TOKENS_TRANSLATION,
    answer=TokensAnswer,
    response=TokensResponse,
    at_fault=_at_fault,
)
