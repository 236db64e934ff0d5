"""The prose of docs/api.md around its tables."""

BEFORE = """# The HTTP API

Names and meanings are OpenAI's, or vLLM's where OpenAI has none. This page is made from the code by `make docs`; a
running server shows it under `/docs`, and as an OpenAPI document under `/openapi.json`.

Each field is one of three kinds:

- **supported**: it has the effect that the table names.
- **no-op**: it is accepted, because none of its values changes the answer here.
- **refused**: tandem lacks the feature. The value in the table, which asks for nothing, is accepted; any other one gets
  status 400 with the field's name.

A field that is `null` counts as absent. A field that is in no table gets status 400 with its name;
`--ignore-unknown-fields` accepts it without effect, as vLLM does, also inside `stream_options`. Unknown fields inside
`messages` and `tools` always pass.
"""

AFTER = """## Limits of the engine

`n` is at most 128, `stop_token_ids` and `logprob_token_ids` have at most 128 ids, `logit_bias` and `bad_words` at most
1,024 entries, a bad word at most 32 tokens, `allowed_token_ids` at most as many ids as the vocabulary. Logprobs:
`--max-logprobs`, 20 by default. A text to be truncated that cannot be cut before it is encoded has at most 128
characters per token of the context length.
`/openapi.json` of a running server has its own limits.

A JSON Schema and a structural tag have at most 1 MiB and 100 levels, a choice at most 200,000 characters in all texts:
docs/structured-outputs.md. The header `tandem-ignored-keywords` names the keywords without effect of a schema that is
not strict, as `/properties/a: not`, joined by commas; what is not ASCII is percent-encoded, and after 2,000 characters
the rest is counted.

## Text in the middle

With `suffix`, the prompt is prefix and suffix between the model's own tokens, in the order of its card. Those of
Qwen-Coder, Granite, CodeGemma, StarCoder, DeepSeek-Coder, Code Llama, Seed-Coder and Codestral are known. A truncated
prompt keeps what is next to the gap: the first tokens of the prefix go, then the last ones of the suffix; with
`truncation_side: right`, those of the suffix first. Code Llama ends the gap with its token `▁<EOT>`, which is none of
its end tokens: send its id in `stop_token_ids`.

## Errors

Errors have OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`. `code` is OpenAI's where it has one:
`context_length_exceeded`, `model_not_found`, `invalid_api_key`. Others are `unsupported_content_type`,
`admin_key_required`, `host_not_allowed`, `origin_not_allowed`.

| status | meaning | `Retry-After` |
|---|---|---|
| 400 | the request is wrong; `param` names the field | no |
| 401 | the API key is missing or wrong | no |
| 403 | the route needs the key of `--admin-api-key`, or the request's host or web page is not allowed | no |
| 404 | no such model or path | no |
| 405 | the path has another method | no |
| 413 | the body is larger than `--max-request-body-bytes`, or takes too much memory or time to read | no |
| 429 | a limit on running and waiting requests is reached (docs/operations.md) | yes |
| 500 | the server failed at this request | no |
| 503 | no process can answer now; for example, one is starting again | yes |

With an API key set, every route needs `Authorization: Bearer KEY` but those that the table above names; one that does
not exist answers 401 without the key, too. Bodies need the header `Content-Type: application/json`.

A stream sends its status once its request runs, so a refusal is a status for streams, too. An error after that is a
`data:` event with the error object, and no `[DONE]` follows it.

## Different from vLLM

| tandem | vLLM |
|---|---|
| `suffix` fills a gap, where the model has tokens for that | refuses it |
| with an API key set, every route needs it but `/live`, `/ready`, `/health`, `/ping`, `/load`, `/version` and \
`/metrics` | needs it below `/v1` only |
| web pages of other sites are refused, unless `--allowed-origins` | allows every page |
| unknown fields are refused by name, unless `--ignore-unknown-fields` | ignores them |
| `/tokenizer_info` and `/server_info` are always there, behind the key; no environment variables \
| need an option, or development mode |
| `/tokenize` refuses 2^20 tokens or more, and more than 2^22 characters | takes any length |
| in `sampling_params` of `/inference/v1/generate`, what is left out is the model's default | is vLLM's |
| the render routes refuse what `/inference/v1/generate` cannot say, such as a call by name | lose it |
| `/v1/chat/completions/batch` needs `add_generation_prompt: true` | fails with false |
| after an error in a stream, no `[DONE]`: a cut answer does not look whole | sends `[DONE]` |
| `logit_bias` beyond -100 to 100 is refused | clamps it |
| `tools: []` counts as no tools | refuses it |
| tools with `tool_choice: auto` need no option, if the model's format of calls is known | need \
`--enable-auto-tool-choice` and `--tool-call-parser` |
| unsupported keywords of a schema are refused, or, if it is not strict, named in a header | depends on the backend |
| logprobs are those of the whole vocabulary, whatever form the answer has | follow the form's mask |
| `parallel_tool_calls: false` ends the answer after its first call | generates the other calls, too, and drops them |
| an answer that `max_tokens` cut has `finish_reason: length`, whatever it holds | `tool_calls` in a full response |
| `include_reasoning: false` leaves token ids and logprobs as they are | drops them |
| `reasoning_content` has the text of `reasoning`, for older clients | has `reasoning` only |
| `functions` and `function_call`, OpenAI's older form of tools | ignores them |
| a message of a role that the chat template drops is refused with its index; `developer` becomes `system` where the \
template does not know it | the message is lost |
| `truncate_prompt_tokens: -1` keeps what `max_tokens` leaves of the context | shortens the answer instead |
| a truncated prompt keeps the special tokens that the tokenizer adds | drops them with an explicit `truncation_side` |
| `usage` has the cached tokens; `--no-enable-prompt-tokens-details` leaves them out | the reverse default |
| a `seed` gives the same answer whatever else is in the batch | not in general |
| too many requests: 429 with `Retry-After` | 503 |

`system_fingerprint` names everything that may change a bit of an answer: equal fingerprints, equal answers for equal
requests with a `seed` or `temperature` 0. Defaults of sampling parameters come from the model's generation_config.json;
`--generation-config vllm` turns them off, and `return_effective_parameters` shows what an answer was made with.
"""
