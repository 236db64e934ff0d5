"""The list of all translations, by name: what child processes that parse bodies know."""

from collections.abc import Mapping

from services.shim.apis.chat.submit import CHAT_TRANSLATION
from services.shim.apis.chat_batch.submit import CHAT_BATCH_TRANSLATION
from services.shim.apis.completions.submit import COMPLETIONS_TRANSLATION
from services.shim.apis.tokenize.submit import DETOKENIZE_TRANSLATION, TOKENIZE_TRANSLATION
from services.shim.apis.tokens.submit import TOKENS_TRANSLATION
from services.shim.apis.translation import Alternatives, AnyTranslation

# SageMaker's only route: as in vLLM, a body with messages is a chat.
INVOCATION = Alternatives("invocation", (("messages", CHAT_TRANSLATION), ("prompt", COMPLETIONS_TRANSLATION)))
TRANSLATIONS: Mapping[str, AnyTranslation] = {
    one.name: one
    for one in (
        CHAT_TRANSLATION,
        COMPLETIONS_TRANSLATION,
        CHAT_BATCH_TRANSLATION,
        TOKENS_TRANSLATION,
        TOKENIZE_TRANSLATION,
        DETOKENIZE_TRANSLATION,
        INVOCATION,
    )
}
