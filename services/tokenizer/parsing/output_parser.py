"""Follows one choice's answer through the states of its grammar, token by token, and writes its pieces.

What is written is final. The state depends on the tokens alone, not on how they are divided into texts. What looks like
a call is kept until its name is known, and released as the text that it is if no call comes of it. docs/tools.md has
the rules for broken output.
"""

import re
from collections.abc import Callable

from services.tokenizer.parsing.calls import PieceWriter
from services.tokenizer.parsing.grammar import Grammar, Node, Start, Transition
from services.tokenizer.parsing.open_call import OpenCall
from services.tokenizer.parsing.outside_text import OutsideText
from services.tokenizer.parsing.table import DONE, ENDS_BY_ITSELF, Read
from services.tokenizer.parsing.value_types import Tools

NAMES = frozenset({Read.NAME, Read.HEADER, Read.SKIP})
FUNCTION = re.compile(r"""[^\s<>{}\[\]"']+""")  # what can be a function's name
MAX_NAME = 256  # characters of a function's or a parameter's name, and of a header


class OutputParser:
    """`is_over`: nothing is read any more, because the only call that may be made has ended."""

    def __init__(
        self, grammar: Grammar, start: Start, tools: Tools, writer: PieceWriter, *, single_call: bool = False
    ) -> None:
        self._grammar = grammar
        self._writer = writer
        self._single = single_call
        self.is_over = False
        self._outside = OutsideText(writer, fresh=start.fresh)
        self._held = ""  # may be the beginning of a marker
        self._tentative = False  # a call is possible, and none has begun
        self._kept: list[str] = []  # the text that is written if no call comes of it
        self._num_opening = 0  # characters of it that opened the possible call
        self._header_is_opened = False  # by a marker that is no part of it
        self._again = ""  # the rest of such text: it is read once more, as ordinary text
        self._name = start.name
        self._call = OpenCall(writer, tools)
        self._node = self._outer = start.node  # `_outer`: where the answer goes on if no call comes

    @property
    def in_reasoning(self) -> bool:
        return self._node.read is Read.REASONING

    @property
    def can_start(self) -> bool:
        """Whether another parser can go on here: outside of calls, and of what may become one."""
        return self._node.is_structure and not self._tentative

    @property
    def start(self) -> Start:
        """Where another parser goes on."""
        return Start(self._node, self._name, self._outside.fresh)

    def text(self, text: str) -> None:
        """Adds text of ordinary tokens."""
        if self._held:
            text, self._held = self._held + text, ""
        while text and not self.is_over:
            text = _READERS[self._node.read](self, text)
            if self._again:
                text, self._again = self._again + text, ""

    def marker(self, marker: str, raw: str) -> None:
        """Adds a token that is a marker. `raw`: the text that the token has in the answer, empty if it is hidden."""
        self._release_held()
        if self.is_over:
            return
        if self._node.read is Read.START and marker not in self._node.transitions:
            self._leave()
        while not self._call.in_string:
            kept = self._follow(marker, raw)
            if kept is not None:
                self._read_again(kept)
                return
            if not self._tentative:
                break
            self._abandon()
            self._read_again()
        self._plain(raw)

    def finish(self, *, stopped: bool) -> None:
        """Ends the answer: writes what was held back. `stopped`: the model ended it, not a limit."""
        self._release_held()
        if self.is_over:
            return
        while self._tentative:
            self._abandon()
            self._read_again()
        unread = self._unread_name(stopped)
        if self._writer.in_call and not self.is_over:
            self._call.finish(stopped=stopped, in_layout=self._node.read is Read.LAYOUT)
        if not self.is_over:
            self._say(unread)
            self._outside.finish(self._node.kind)

    def _unread_name(self, stopped: bool) -> str:
        """Returns what the end makes text: a header that no marker opened, a name in which the model stopped."""
        opened = self._header_is_opened if self._node.read is Read.HEADER else not stopped
        return "" if opened or self._node.read not in NAMES else "".join(self._kept)

    # Markers.

    def _follow(self, event: str, raw: str) -> str | None:
        """Takes the transition of a marker or DONE, if one matches. Returns what of the marker's text belongs to the
        next state; None if no transition matches."""
        for transition in self._node.transitions.get(event, ()):
            if transition.when is None:
                name = transition.name or self._name.strip()
                return self._take(transition, raw, name, behind_call=event == DONE)
            match = transition.when.search(self._name)
            if match is not None:
                name = match.groupdict().get("name") or self._name
                return self._take(transition, raw, name.strip(), behind_call=event == DONE)
        return None

    def _take(self, transition: Transition, raw: str, name: str, *, behind_call: bool) -> str:
        to, space = transition.to, self._outside.take_space()
        was_call = self._writer.in_call or behind_call
        unread = "" if transition.do or self._node.read is not Read.NAME else "".join(self._kept)
        if was_call:
            self._kept.clear()
        elif not self._tentative:
            self._kept = [space]
            self._num_opening = len(space) + len(raw)
            if self._node.is_outside:
                self._outer = self._node
        self._header_is_opened = not transition.keep
        kept, layout = (raw, "") if transition.keep else ("", raw)
        for action in transition.do:
            if action == "call" and not transition.name and not FUNCTION.fullmatch(name):
                self._abandon(layout)
                return kept
            self._act(action, name)
        if to.is_structure and self._tentative:
            self._abandon(layout)
            return kept
        if not (was_call and to.read is Read.LAYOUT):  # behind a call, what can't be read is not the call's text
            self._kept.append(layout)
            self._tentative = not (self._writer.in_call or to.is_structure)
        self._go(to)
        if was_call and unread and to.is_outside:  # a name that nothing was made of
            self._say(unread)
        return kept

    def _act(self, action: str, name: str) -> None:
        if action == "call":
            self._call.begin(name)
            self._settle()
        elif action == "key":
            self._call.parameters.begin(name)
        elif action == "value":
            self._call.parameters.end_value()
        elif self._writer.in_call:
            self._end_call(whole=self._call.may_end)

    def _end_call(self, *, whole: bool) -> None:
        self._call.end(whole=whole)
        self._settle()
        self.is_over = self._single

    def _settle(self) -> None:
        """A call has begun or ended: what was kept is part of it, and reasoning is over."""
        self._kept.clear()
        self._tentative = False
        self._outer = self._grammar.content
        self._outside.after_call()

    def _go(self, node: Node) -> None:
        before, self._node = self._node, node
        self._name = f"{self._name} " if node.read is before.read is Read.HEADER else ""
        if node.is_structure:
            if self._writer.in_call:
                self._end_call(whole=self._call.reader is not None and self._call.may_end)
            self._kept.clear()
            self._call.reader = None
            self._outside.begin(fresh=Read.REASONING in (before.read, node.read))
        elif node.read in ENDS_BY_ITSELF:
            self._call.read(node)
        elif node.read is Read.VALUE:
            self._call.parameters.trim = node.trim

    def _abandon(self, more: str = "") -> None:
        """No call came of what was kept: it and `more` are text, and the answer goes on where it was.

        What opened the possible call is written, the rest is read again: reasoning may end there.
        """
        text, outer = "".join(self._kept) + more, self._outer
        self._kept.clear()
        self._tentative = False
        self._name = ""
        self._call.reader = None
        self._node = outer if outer.read is not Read.START else self._grammar.content
        self._say(text[: self._num_opening])
        self._again = text[self._num_opening :]

    def _leave(self) -> None:
        """The text that follows is none that the state knows: no call comes, or content follows."""
        if self._tentative:
            self._abandon()
            return
        text = "".join(self._kept)
        self._go(self._node.otherwise or self._grammar.content)
        self._say(text)

    # Text, by what the state reads. Each function returns the rest, which the state that is then current reads.

    def _read_until_marker(self, text: str, add: Callable[[str], None]) -> str:
        """Adds the text up to the next marker of the state, and follows the marker; holds back what may begin one."""
        pattern = self._node.pattern
        match = pattern.search(text) if pattern is not None else None
        if match is None:
            add(text)
            return ""
        if match.start():
            add(text[: match.start()])
        return self._read_marker(match, text)

    def _read_marker(self, match: re.Match[str], text: str) -> str:
        """Follows the marker that was found, or holds it back if it is only the beginning of one."""
        if match.lastgroup == "part":
            self._held = match[0]
            return ""
        kept = self._follow(match[0], match[0])
        if kept is None:
            self._plain(match[0])
        return (kept or "") + text[match.end() :]

    def _read_outside(self, text: str) -> str:
        return self._read_until_marker(text, self._say)

    def _read_layout(self, text: str) -> str:
        if self._writer.in_call:  # text within a call is content, and the call goes on
            return self._read_until_marker(text, self._say)
        return self._read_marker_only(text)

    def _read_marker_only(self, text: str) -> str:
        """Reads whitespace and a marker behind it; other text leaves the state."""
        stripped = text.lstrip()
        space = text[: len(text) - len(stripped)]
        if self._tentative:
            self._kept.append(space)
        else:
            self._outside.hold(space)
        if not stripped:
            return ""
        pattern = self._node.pattern
        match = pattern.match(stripped) if pattern is not None else None
        if match is not None:
            return self._read_marker(match, stripped)
        self._leave()
        return stripped

    def _read_name(self, text: str) -> str:
        pattern = self._node.pattern
        match = pattern.search(text) if pattern is not None else None
        if match is None:
            return self._add_name(text)
        rest = self._add_name(text[: match.start()])
        return rest + text[match.start() :] if rest else self._read_marker(match, text)

    def _add_name(self, text: str) -> str:
        """Adds to the name, or to a header; returns what makes it too long, which then is in another state."""
        room = MAX_NAME - len(self._name)
        self._kept.append(text[:room])
        self._name += text[:room]
        if len(text) > room:
            self._leave()
        return text[room:]

    def _read_value(self, text: str) -> str:
        return self._read_until_marker(text, self._call.parameters.add)

    def _read_call(self, text: str) -> str:
        reader, writer = self._call.reader, self._writer
        assert reader is not None
        if reader.broken:
            return self._read_until_marker(text, writer.add_arguments)
        calls, ended = writer.num_calls, writer.num_ended
        used = reader.read(text)
        if (writer.num_calls, writer.num_ended) != (calls, ended):
            self._settle()
        elif not writer.in_call:
            self._kept.append(text[:used])
            self._tentative = True
        if self._single and writer.num_ended:
            self.is_over = True
        elif reader.failed:
            self._abandon()
        elif reader.done:
            self._settle()
            self._follow(DONE, "")
        return text[used:]

    def _plain(self, text: str) -> None:
        """Adds text in which no marker is looked for."""
        while text and not self.is_over:
            read, reader, rest = self._node.read, self._call.reader, ""
            if read is Read.START or (read is Read.LAYOUT and not self._writer.in_call):
                self._leave()
                rest = text
            elif read is Read.VALUE:
                self._call.parameters.add(text)
            elif read in NAMES:
                rest = self._add_name(text)
            elif read not in ENDS_BY_ITSELF or reader is None:
                self._say(text)
            elif reader.broken:
                self._writer.add_arguments(text)
            else:
                rest = self._read_call(text)
            self._read_again()
            text = rest

    def _release_held(self) -> None:
        if self._held:
            held, self._held = self._held, ""
            kept = self._follow(held, held)
            if kept is None:
                self._plain(held)
            else:
                self._read_again(kept)

    def _read_again(self, more: str = "") -> None:
        """Reads what was kept and is ordinary text, and then `more`."""
        text, self._again = self._again + more, ""
        if text:
            self.text(text)
            self._release_held()

    def _say(self, text: str) -> None:
        """Writes text of the current state, content or reasoning."""
        self._outside.add(self._node.kind, text, before_markers=self._node.holds_space)


_READERS: dict[Read, Callable[[OutputParser, str], str]] = {
    Read.CONTENT: OutputParser._read_outside,
    Read.REASONING: OutputParser._read_outside,
    Read.START: OutputParser._read_marker_only,
    Read.LAYOUT: OutputParser._read_layout,
    **dict.fromkeys(NAMES, OutputParser._read_name),
    Read.VALUE: OutputParser._read_value,
    **dict.fromkeys(ENDS_BY_ITSELF, OutputParser._read_call),
}
