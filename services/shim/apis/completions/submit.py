"""A completion request as submits for the tokenizer, one per prompt."""

from services.rpc.columns import pack_u32
from services.rpc.errors import invalid
from services.rpc.generated import text_pb2
from services.shim.apis.completions.schema import CompletionRequest
from services.shim.apis.submit import SubmitContext, add_form, base_submit
from services.shim.apis.translation import Translation
from services.shim.body import Body

MAX_FORM_BYTES = 2**24  # of the answer's form, for all prompts together: each submit has its own copy


def completion_submits(request: CompletionRequest, body: Body, context: SubmitContext) -> list[text_pb2.TextSubmit]:
    """Returns one submit per prompt, in their order.

    Raises TandemError as `base_submit`, and for a form of the answer that is too large for so many prompts.
    """
    submits = []
    form = request.structured_output(body)
    if form is not None and (size := form.ByteSize() * len(request.prompts)) > MAX_FORM_BYTES:
        raise invalid(
            f"{form.field}: {size} bytes for {len(request.prompts)} prompts, but at most {MAX_FORM_BYTES}", form.field
        )
    base = base_submit(request, context)
    add_form(base.output, form)
    base.output.echo = request.echo
    base.output.prompt_only = request.max_tokens == 0
    for prompt in request.prompts:
        submit = text_pb2.TextSubmit()
        submit.CopyFrom(base)
        if isinstance(prompt, str):
            submit.text.text = prompt
            submit.text.add_special_tokens = request.add_special_tokens
            submit.text.suffix = request.suffix or ""
        else:
            submit.prompt_token_ids = pack_u32(prompt)
        submits.append(submit)
    return submits


COMPLETIONS_TRANSLATION = Translation("completions", CompletionRequest, completion_submits)
