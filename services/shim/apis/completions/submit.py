"""A completion request as submits for the tokenizer, one per prompt."""

from services.rpc.columns import pack_u32
from services.rpc.generated import text_pb2
from services.shim.apis.completions.schema import CompletionRequest
from services.shim.apis.submit import SubmitContext, base_submit
from services.shim.body import Body


def completion_submits(request: CompletionRequest, body: Body, context: SubmitContext) -> list[text_pb2.TextSubmit]:
    """Returns one submit per prompt, in their order. Raises TandemError as `base_submit`."""
    submits = []
    for prompt in request.prompts:
        submit = base_submit(request, context)
        if isinstance(prompt, str):
            submit.text.text = prompt
            submit.text.add_special_tokens = request.add_special_tokens
        else:
            submit.prompt_token_ids = pack_u32(prompt)
        submits.append(submit)
    return submits
