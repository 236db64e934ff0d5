"""The request of /v1/completions. https://platform.openai.com/docs/api-reference/completions/create"""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from services.rpc.errors import invalid
from services.shim.apis.fields import refused, supported
from services.shim.apis.request import FailFastList, GenerationRequest, TokenIds

MAX_PROMPTS = 1024
MAX_CHOICES = 1024  # prompts times n
MAX_STOP_CHARACTERS = 2**20  # of all stop strings and bad words, for all prompts together
MAX_SUFFIX_CHARACTERS = 2**24  # for all prompts together, as each prompt is a submit with its own copy
MAX_ALLOWED_IDS = 2**22  # for all prompts together: each prompt is a submit with its own copy


def _only_in_chats(value: Any) -> Any:
    if value is not None:
        raise PydanticCustomError("only_chat", "only /v1/chat/completions separates reasoning from the answer")
    return value


class CompletionRequest(GenerationRequest):
    logprobs_field = "logprobs"

    prompt: (
        str
        | Annotated[FailFastList[str], Field(min_length=1, max_length=MAX_PROMPTS)]
        | TokenIds
        | Annotated[FailFastList[TokenIds], Field(min_length=1, max_length=MAX_PROMPTS)]
    ) = supported(..., f"Text or token ids, or a list of up to {MAX_PROMPTS} of either.")
    max_tokens: int | None = supported(
        16, "The longest answer, in tokens; 0, with echo: no answer behind the prompt.", ge=0, le=2**31 - 1
    )
    echo: bool = supported(False, "The answer begins with the prompt, and its logprobs with those of the prompt.")
    logprobs: int | None = supported(
        None, "Logprobs of the answer's tokens, and of this many most likely tokens; -1: of all.", ge=-1
    )
    add_special_tokens: bool = supported(True, "The tokenizer adds its special tokens to the prompt.")
    suffix: str | None = supported(
        None, "Text after the answer, which fills the gap; needs a prompt of text, and a model with tokens for that."
    )
    prompt_embeds: None = refused(None, "Prompts as embeddings.")
    thinking_token_budget: Annotated[None, BeforeValidator(_only_in_chats)] = refused(
        None, "A limit on tokens of reasoning: chats have it."
    )

    @model_validator(mode="after")
    def _check_echo(self) -> "CompletionRequest":
        if self.max_tokens == 0 and not self.echo:
            raise invalid("max_tokens is 0, but must be at least 1 without echo", "max_tokens")
        return self

    @model_validator(mode="after")
    def _check_choices(self) -> "CompletionRequest":
        choices = len(self.prompts) * self.n
        if choices > MAX_CHOICES:
            raise invalid(f"{len(self.prompts)} prompts times n = {choices} choices, but at most {MAX_CHOICES}", "n")
        for name, texts in (("stop", self.stop_strings), ("bad_words", self.bad_words)):
            characters = len(self.prompts) * sum(map(len, texts))
            if characters > MAX_STOP_CHARACTERS:
                raise invalid(
                    f"{name} has {characters} characters for {len(self.prompts)} prompts,"
                    f" but at most {MAX_STOP_CHARACTERS}",
                    name,
                )
        self._check_suffix()
        allowed = len(self.prompts) * len(self.allowed_token_ids or ())
        if allowed > MAX_ALLOWED_IDS:
            raise invalid(
                f"allowed_token_ids has {allowed} ids for {len(self.prompts)} prompts, but at most {MAX_ALLOWED_IDS}",
                "allowed_token_ids",
            )
        return self

    def _check_suffix(self) -> None:
        if self.suffix and not isinstance(self.prompts[0], str):
            raise invalid("suffix is only allowed with a prompt of text, not of token ids", "suffix")
        if self.suffix and self.echo:
            raise invalid("suffix and echo are not allowed together: the answer is not behind the prompt", "suffix")
        characters = len(self.prompts) * len(self.suffix or "")
        if characters > MAX_SUFFIX_CHARACTERS:
            raise invalid(
                f"suffix has {characters} characters for {len(self.prompts)} prompts,"
                f" but at most {MAX_SUFFIX_CHARACTERS}",
                "suffix",
            )

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [self.prompt]
        return self.prompt

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def num_prompt_logprobs(self) -> int | None:
        return self.logprobs if self.prompt_logprobs is None and self.echo else self.prompt_logprobs

    @property
    def echoes_logprobs(self) -> bool:
        return self.echo and self.logprobs is not None
