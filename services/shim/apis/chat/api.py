"""The API of /v1/chat/completions."""

from services.rpc.errors import CONTEXT_LENGTH_EXCEEDED, TandemError
from services.shim.apis.api import Api
from services.shim.apis.chat.answer import ChatAnswer, ChatCompletion
from services.shim.apis.chat.submit import CHAT_TRANSLATION
from services.shim.routes import CHAT


def _at_fault(error: TandemError) -> TandemError:
    """Names `messages` where the prompt, or its length together with max_tokens, is at fault, as OpenAI does."""
    if error.param == "prompt" or error.reason == CONTEXT_LENGTH_EXCEEDED:
        error.param = "messages"
    return error


CHAT_API = Api(
    path=CHAT,
    summary="Answers a chat.",
    operation="chat",
    id_prefix="chatcmpl-",
    translation=CHAT_TRANSLATION,
    answer=ChatAnswer,
    response=ChatCompletion,
    at_fault=_at_fault,
)
