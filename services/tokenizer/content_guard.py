"""Keeps control tokens that a request's strings hold from acting as control tokens in its prompt.

It knows the control tokens' texts and a chat template's own texts; services/tokenizer/stand_ins.py knows what becomes
of a request's strings.
"""

from collections.abc import Sequence

from services.tokenizer.control_scan import ControlScan
from services.tokenizer.control_tokens import ControlToken
from services.tokenizer.stand_ins import AsItIs, StandIns, private_use
from services.tokenizer.template_texts import TemplateTexts

AS_IT_IS = AsItIs()


class ContentGuard:
    """The guard of one model."""

    def __init__(self, tokens: Sequence[ControlToken], own_texts: Sequence[str]) -> None:
        """`own_texts`: the text of the operator's that templates may print."""
        self._all = ControlScan(token.text for token in tokens)
        # Templates look for the others in the assistant's content, and calls that it wrote stand there.
        self._special = ControlScan(token.text for token in tokens if token.is_special)

        self._own_texts = own_texts

    def of_template(self, texts: TemplateTexts) -> "TemplateGuard":
        """Returns the guard for one template."""
        return TemplateGuard(
            self._all.of_template(texts),
            self._special.of_template(texts),
            self._all,
            (texts.source, *self._own_texts),
        )


class TemplateGuard:
    """The guard of one model with one chat template."""

    def __init__(self, scan: ControlScan, assistant: ControlScan, role: ControlScan, own: Sequence[str]) -> None:
        """The scans as in StandIns. `own`: all text of the operator's that the template may print."""
        self._scan, self._assistant, self._role = scan, assistant, role
        self._own = private_use(own)

    def stand_ins(self, json_texts: Sequence[str]) -> AsItIs:
        """Returns the stand-ins of a request that has these JSON texts."""
        if not any(map(self._scan.may_have, json_texts)):
            return AS_IT_IS

        return StandIns(self._scan, self._assistant, self._role, self._own, json_texts)
