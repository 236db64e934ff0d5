"""Encodes rendered prompts such that control tokens act in the template's text only, not in a request's.

Two tokenizers beside the model's own do it. The finder has its added tokens, and finds where they act outside of the
prompt's plain spans. The other one has its model, but unguessable names for the control tokens: the prompt gets a name
in place of each one that acts, and all other text is plain to it. Without spans the model's own tokenizer encodes the
prompt, where its ids are the same.
"""

from collections.abc import Iterator
from itertools import pairwise

from tokenizers import AddedToken, Encoding, Tokenizer
from tokenizers.models import WordLevel

from services.errors import Fatal
from services.tokenizer.control_tokens import control_tokens, is_control
from services.tokenizer.plain_model import unguessable
from services.tokenizer.prompt_text import PromptText
from services.tokenizer.truncation import PromptLimits
from services.tokenizer.vocabulary import SHORT_TEXT, Vocabulary, encoding_of, kept

FILLS = "\ue000¤¶§†~*"  # candidates for what the finder reads in plain spans
UNKNOWN = "unknown"


class GuardedEncoding:
    def __init__(self, vocabulary: Vocabulary) -> None:
        """Raises Fatal for added tokens with ids that no other tokenizer can have."""
        self._vocabulary = vocabulary
        own = vocabulary.tokenizer
        added = dict(sorted(own.get_added_tokens_decoder().items()))
        self.control_tokens = control_tokens(added.values())
        secret = unguessable()
        names = {
            token.content: f"{token.content[0]}{secret}{_letters(index)}{token.content[-1]}"
            for index, token in enumerate(filter(is_control, added.values()))
        }
        self._finder = _finder(own, list(added.values()))
        self._names = {self._finder.token_to_id(text): (text, name) for text, name in names.items()}
        self._fill = _fill(self._finder, list(added.values()))
        self._tokenizer = _renamed(own, vocabulary, added, names)
        self._ids = _ids(self._tokenizer, added, names)
        # A normalizer may turn other text into a control token's: only the template's own text counts then.
        self._always = vocabulary.normalizes and (
            vocabulary.has_other_model or any(token.normalized for token in added.values() if is_control(token))
        )

    def encode(self, prompt: PromptText, limits: PromptLimits, *, add_special_tokens: bool) -> list[int]:
        """Returns the prompt's token ids within `limits`, as Vocabulary.encode_prompt."""
        if not prompt.plain_spans and not self._always:
            return self._vocabulary.encode_prompt(prompt.text, limits, add_special_tokens=add_special_tokens)
        encoding = encoding_of(self._tokenizer, self._named(prompt), add_special_tokens)
        ids = kept(encoding, limits)
        return [self._ids.get(token_id, token_id) for token_id in ids] if self._ids else ids

    def _named(self, prompt: PromptText) -> str:
        """Returns the text with a name in place of each control token that acts."""
        text, last = prompt.text, 0
        parts: list[str] = []
        found = self._found(_filled(prompt, self._fill))
        for token_id, (start, end) in zip(found.ids, found.offsets, strict=True):
            if token_id not in self._names:
                continue
            token, name = self._names[token_id]
            place = text.find(token, start, end)  # it may have taken whitespace beside it
            if place >= 0:  # else other text, that the normalizer made into the token's
                parts += text[last:place], name
                last = place + len(token)
        return "".join([*parts, text[last:]])

    def _found(self, text: str) -> Encoding:
        if len(text) <= SHORT_TEXT:
            return self._finder.encode(text, add_special_tokens=False)
        return self._finder.encode_batch([text], add_special_tokens=False)[0]  # with the GIL released


def _letters(index: int) -> str:
    """Returns four letters for a number."""
    return "".join(chr(ord("a") + index // 26**place % 26) for place in range(4))


def _copy(token: AddedToken, content: str) -> AddedToken:
    return AddedToken(
        content,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized,
        special=token.special,
    )


def _finder(own: Tokenizer, added: list[AddedToken]) -> Tokenizer:
    """Returns a tokenizer to which all text between added tokens is one token."""
    finder = Tokenizer(WordLevel({UNKNOWN: 0}, UNKNOWN))
    if own.normalizer is not None:
        finder.normalizer = own.normalizer
    finder.add_tokens([_copy(token, token.content) for token in added])
    return finder


def _renamed(own: Tokenizer, vocabulary: Vocabulary, added: dict[int, AddedToken], names: dict[str, str]) -> Tokenizer:
    """Returns the tokenizer with other names for control tokens. Their ids stay where they are behind the model's."""
    renamed = Tokenizer(vocabulary.plain_model)
    for part in ("normalizer", "pre_tokenizer", "post_processor"):
        if getattr(own, part) is not None:
            setattr(renamed, part, getattr(own, part))
    in_model = [token for token in added.values() if own.model.token_to_id(token.content) is not None]
    others = [token for token in added.values() if own.model.token_to_id(token.content) is None]
    renamed.add_tokens([_copy(token, names.get(token.content, token.content)) for token in [*others, *in_model]])
    return renamed


def _ids(renamed: Tokenizer, added: dict[int, AddedToken], names: dict[str, str]) -> dict[int, int]:
    """Returns the model's ids by those of the renamed tokenizer, where these differ."""
    ids = {renamed.token_to_id(names.get(token.content, token.content)): index for index, token in added.items()}
    changed = {one: other for one, other in ids.items() if one is not None and one != other}
    if None in ids or changed.keys() & added.keys():
        raise Fatal(
            "tokenizer.json: the ids of its added tokens do not follow those of its model, so control tokens cannot be"
            " told from text; --allow-special-tokens-in-content serves it without"
        )
    return changed


def _fill(finder: Tokenizer, added: list[AddedToken]) -> str:
    """Returns a character that is in no added token and that the normalizer keeps."""
    for fill in FILLS:
        read = finder.normalizer.normalize_str(f"a{fill}a") if finder.normalizer is not None else fill
        if fill in read and not any(fill in token.content for token in added):
            return fill
    raise Fatal("tokenizer.json: its added tokens have every character that plain text is marked with")


def _filled(prompt: PromptText, fill: str) -> str:
    text = prompt.text
    edges = [0, *(edge for span in prompt.plain_spans for edge in span), len(text)]
    return "".join(_pieces(text, fill, edges))


def _pieces(text: str, fill: str, edges: list[int]) -> Iterator[str]:
    for number, (start, end) in enumerate(pairwise(edges)):
        yield fill * (end - start) if number % 2 else text[start:end]
