"""The list of all APIs that generate text or token ids."""

from collections.abc import Mapping

from services.shim.apis.api import Api
from services.shim.apis.chat.api import CHAT_API
from services.shim.apis.chat_batch.api import CHAT_BATCH_API
from services.shim.apis.completions.api import COMPLETIONS_API
from services.shim.apis.tokens.api import TOKENS_API

APIS: tuple[Api, ...] = (CHAT_API, COMPLETIONS_API)  # OpenAI's
ALL_APIS: tuple[Api, ...] = (*APIS, CHAT_BATCH_API, TOKENS_API)
API_OF: Mapping[str, Api] = {api.translation.name: api for api in ALL_APIS}
