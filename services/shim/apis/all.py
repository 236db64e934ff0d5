"""The list of all APIs that generate text."""

from services.shim.apis.api import Api
from services.shim.apis.chat.api import CHAT_API
from services.shim.apis.completions.api import COMPLETIONS_API

APIS: tuple[Api, ...] = (CHAT_API, COMPLETIONS_API)
