"""What an answer has beside its text, as the request and the server's options say. Read by the answers of all APIs."""

from dataclasses import dataclass


@dataclass(frozen=True)
class AnswerOptions:
    """What a response has beside the text, by the request's fields and the server's options."""

    token_ids: bool = False  # of prompts and choices
    tokens_as_token_ids: bool = False  # in logprobs
    effective_parameters: bool = False
    continuous_usage: bool = False  # every chunk has the counts so far
    prompt_tokens_details: bool = True
    response_role: str = "assistant"
    show_reasoning: bool = True  # if the API separates it from the content
    older_function_call: bool = False  # a tool call is written as `function_call`
    named_call: bool = False  # the request names the function of the answer's call
    token_strs: bool = False  # /tokenize has each token as the vocabulary writes it
    prompt_logprobs: bool = False
    echoes_logprobs: bool = False  # logprobs begin with those of the prompt

    @property
    def has_prompt_scores(self) -> bool:
        return self.prompt_logprobs or self.echoes_logprobs

    def token_text(self, token_id: int, text: str) -> str:
        """Returns a token as logprobs have it."""
        return f"token_id:{token_id}" if self.tokens_as_token_ids else text
