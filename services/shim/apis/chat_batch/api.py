"""The API of /v1/chat/completions/batch: the response is that of a chat with a choice for each conversation."""

from services.shim.apis.api import Api
from services.shim.apis.chat.api import CHAT_API
from services.shim.apis.chat_batch.submit import CHAT_BATCH_TRANSLATION
from services.shim.routes import CHAT_BATCH

CHAT_BATCH_API = Api(
    path=CHAT_BATCH,
    summary="Answers several chats.",
    operation=CHAT_API.operation,
    id_prefix=CHAT_API.id_prefix,
    translation=CHAT_BATCH_TRANSLATION,
    answer=CHAT_API.answer,
    response=CHAT_API.response,
    at_fault=CHAT_API.at_fault,
)
