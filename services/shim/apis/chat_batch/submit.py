"""A batch of chats as submits for the tokenizer, one per conversation."""

import msgspec

from services.rpc.errors import invalid
from services.rpc.generated import text_pb2
from services.shim.apis.chat.submit import chat_submits
from services.shim.apis.chat_batch.schema import ChatBatchRequest
from services.shim.apis.submit import SubmitContext
from services.shim.apis.translation import Translation
from services.shim.body import Body

MAX_COPIED_BYTES = 2**24  # of all fields but messages, for all conversations together: each submit has its own copy
_conversations = msgspec.json.Decoder(list[msgspec.Raw]).decode


def chat_batch_submits(request: ChatBatchRequest, body: Body, context: SubmitContext) -> list[text_pb2.TextSubmit]:
    """Returns one submit per conversation, in their order. Raises TandemError as `chat_submits`, and for other fields
    that are too large for so many conversations."""
    conversations = _conversations(body.json("messages"))
    (base,) = chat_submits(request, body, context)
    base.chat.messages_json = b""
    if (size := base.ByteSize() * len(conversations)) > MAX_COPIED_BYTES:
        raise invalid(
            f"the fields beside messages have {size} bytes for {len(conversations)} conversations, but at most"
            f" {MAX_COPIED_BYTES} are allowed"
        )
    submits = []
    for messages in conversations:
        submit = text_pb2.TextSubmit()
        submit.CopyFrom(base)
        submit.chat.messages_json = bytes(messages)
        submits.append(submit)
    return submits


CHAT_BATCH_TRANSLATION = Translation("chat_batch", ChatBatchRequest, chat_batch_submits)
