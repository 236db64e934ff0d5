"""A request of /inference/v1/generate as a submit for the tokenizer, which passes ids and makes no text of them."""

from services.rpc.columns import pack_u32
from services.rpc.errors import too_long
from services.rpc.generated import text_pb2
from services.shim.apis.submit import SubmitContext, add_form, base_submit
from services.shim.apis.tokens.schema import TOKENS_FORM, TokensRequest
from services.shim.apis.translation import Translation
from services.shim.body import Body


def tokens_submits(request: TokensRequest, body: Body, context: SubmitContext) -> list[text_pb2.TextSubmit]:
    """Returns the one submit of the request. Raises TandemError as `base_submit`, and for too many ids."""
    if (count := len(request.token_ids)) >= context.facts.max_model_len:
        raise too_long(count, context.facts.max_model_len, param="token_ids")
    submit = base_submit(request, context)
    add_form(submit.output, request.structured_output(body))
    submit.prompt_token_ids = pack_u32(request.token_ids)
    submit.output.token_ids_only = True
    return [submit]


TOKENS_TRANSLATION = Translation("tokens", TokensRequest, tokens_submits, TOKENS_FORM)
