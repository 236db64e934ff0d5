"""The send queue to one shim: acceptances, text events and terminal messages of all its choices.

Events of one choice merge until they are sent, as far as their tokens fall in one range of MERGED_TOKENS.
"""

from services.rpc.generated import text_pb2
from services.rpc.mailbox import MERGED_TOKENS, Mailbox, num_fitting


class TextMailbox(Mailbox[text_pb2.TextUp]):
    def __init__(self, epoch: int) -> None:
        super().__init__()
        self._epoch = epoch
        self._accepted: list[text_pb2.TextAccepted] = []
        self._events: dict[tuple[int, int], text_pb2.TextEvent] = {}  # by handle and start_index // MERGED_TOKENS
        self._terminals: list[text_pb2.TextTerminal] = []

    def put_accepted(self, accepted: text_pb2.TextAccepted) -> None:
        self._accepted.append(accepted)
        self._wake.set()

    def put_event(self, event: text_pb2.TextEvent) -> None:
        key = (event.handle, event.start_index // MERGED_TOKENS)
        pending = self._events.get(key)
        if pending is None:
            self._events[key] = event
        else:
            pending.token_ids += event.token_ids
            pending.content += event.content
            pending.logprobs.extend(event.logprobs)
        self._wake.set()

    def put_terminal(self, terminal: text_pb2.TextTerminal) -> None:
        self._terminals.append(terminal)
        self._wake.set()

    def take(self) -> text_pb2.TextUp:
        accepted, self._accepted = self._accepted, []
        count = num_fitting(event.ByteSize() for event in self._events.values())
        events = list(self._events.values())[:count]
        self._events = dict(list(self._events.items())[count:])
        terminals: list[text_pb2.TextTerminal] = []
        if self._events:
            self._wake.set()
        else:  # a terminal message comes after all events of its choice
            terminals, self._terminals = self._terminals, []
        batch = text_pb2.TextBatch(epoch=self._epoch, accepted=accepted, events=events, terminals=terminals)
        return text_pb2.TextUp(batch=batch)
