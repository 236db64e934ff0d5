"""The API of /v1/completions."""

from services.rpc.errors import TandemError
from services.shim.apis.api import Api
from services.shim.apis.completions.answer import Completion, CompletionAnswer
from services.shim.apis.completions.submit import COMPLETIONS_TRANSLATION
from services.shim.routes import COMPLETIONS


def _at_fault(error: TandemError) -> TandemError:
    return error


COMPLETIONS_API = Api(
    path=COMPLETIONS,
    summary="Continues texts.",
    operation="text_completion",
    id_prefix="cmpl-",
    translation=COMPLETIONS_TRANSLATION,
    answer=CompletionAnswer,
    response=Completion,
    at_fault=_at_fault,
)
