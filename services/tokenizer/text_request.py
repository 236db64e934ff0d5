"""One request of a shim or program, once its prompt is encoded: submits it to an engine, turns its tokens into text.

It is the listener of its engine call, and writes to its caller's mailbox. It counts output tokens itself, and finds
stop strings: the engine knows none, and may have generated tokens beyond one.
"""

import asyncio
from dataclasses import dataclass
from typing import Protocol

from services.rpc.columns import pack_u32, unpack_u32
from services.rpc.errors import TandemError
from services.rpc.generated import common_pb2 as pb
from services.rpc.generated import engine_pb2, text_pb2
from services.rpc.pieces import Piece, kinds_of, of_content
from services.telemetry.spans import Span
from services.tokenizer.answer_divider import AnswerDivider
from services.tokenizer.answer_grammar import grammar_field
from services.tokenizer.choice_output import ChoiceOutput, OutputRules
from services.tokenizer.engine_client import EngineCall, EngineClient, TokenLogprobColumns
from services.tokenizer.mailbox import ChoiceMailbox
from services.tokenizer.parsing.answer_format import AnswerPlan
from services.tokenizer.prompt_logprobs import PromptLogprobTexts
from services.tokenizer.token_output import TokenOutput
from services.tokenizer.vocabulary import Vocabulary

MAX_REPLAYED = 1024  # resumed tokens of a turn: 2 to 4 ms (docs/log.md, 2026-11-29)
ENGINE_GRAMMAR = "grammar"  # the engine's name for what the client has in another field


@dataclass
class _Choice:
    """One open choice. `handle` is the caller's; the choice is kept under the handle that the engine knows."""

    handle: int
    output: ChoiceOutput | TokenOutput
    cached_tokens: int
    lead: str  # text that comes before the choice's own and has not been sent
    is_plain: bool  # its pieces are sent as they are


class ChoiceListener(Protocol):
    """What a TextRequest tells its session. Handles are the caller's."""

    def started(self, handle: int) -> None:
        """Called when a choice of a request that starts alone (a suspect) has its first token."""

    def ended(self, handle: int) -> None:
        """Called when a choice has its terminal message or was aborted."""

    def parsed(self, num_calls: int, num_broken: int) -> None:
        """Called when a choice has ended in which tool calls were looked for, with the numbers found."""


class TextRequest:
    def __init__(
        self,
        submit: text_pb2.TextSubmit,
        prompt_token_ids: list[int],
        resolved: text_pb2.ResolvedOutput,
        plan: AnswerPlan,
        vocabulary: Vocabulary,
        mailbox: ChoiceMailbox,
        engines: EngineClient,
        listener: ChoiceListener,
        span: Span,
    ) -> None:
        """`submit` is the caller's, `mailbox` that of its stream or call; `resolved` and `plan` belong to the submit's
        output specification. `span` is the request's; it ends with the last choice."""
        self._span = span
        self._num_open = 0
        self._submit = submit
        self._prompt = prompt_token_ids
        self._resolved = resolved
        self._plan = plan
        self._vocabulary = vocabulary
        self._mailbox = mailbox
        self._engines = engines
        self._listener = listener
        self._not_started: set[int] = set()  # the caller's handles, of a request that starts alone
        self._outputs: dict[int, ChoiceOutput | TokenOutput] = {}  # of choices with resumed tokens, by that handle
        self._choices: dict[int, _Choice] = {}
        self._call: EngineCall | None = None
        self._resolved_sent = False
        self._has_text = not submit.output.token_ids_only
        self._prompt_only = submit.output.prompt_only
        self._scored_texts = PromptLogprobTexts(
            vocabulary, prompt_token_ids, resolved.lead if submit.output.echo else ""
        )
        self._lead_characters = len(resolved.lead)

    async def replay(self, turn: asyncio.Lock) -> None:
        """Reads the resumed tokens of the choices again, a part in each turn of the event loop, and no other request's
        meanwhile: after a tokenizer's death they come all at once. Call it before `start`."""
        resumed = [choice for choice in self._submit.choices if choice.resumed_token_ids]
        if not resumed:
            return
        rules = self._rules()
        async with turn:
            for choice in resumed:
                self._outputs[choice.handle] = output = self._new_output(choice, rules)
                token_ids = unpack_u32(choice.resumed_token_ids)
                for at in range(0, len(token_ids), MAX_REPLAYED):
                    if not output.is_over:
                        output.push(token_ids[at : at + MAX_REPLAYED])
                        await asyncio.sleep(0)

    def start(self) -> None:
        """Submits the choices to an engine. Those that end with their resumed tokens, by a stop string or a call, end.

        Text of resumed tokens is not sent again. When no engine is connected, a first attempt raises TandemError
        (UNAVAILABLE), and a later one waits for an engine.
        """
        rules = self._rules()
        self._num_open = len(self._submit.choices)
        self._not_started = {one.handle for one in self._submit.choices} if self._submit.alone else set()
        choices = []
        for choice in self._submit.choices:
            begun = bool(choice.resumed_token_ids)
            output = self._outputs.pop(choice.handle) if begun else self._new_output(choice, rules)
            lead = "" if begun else self._resolved.lead
            opened = _Choice(choice.handle, output, choice.cached_tokens, lead, self._has_text and not lead)
            if output.is_over:
                self._end(opened, None)
                continue
            handle = self._engines.dispatcher.new_handle()
            self._choices[handle] = opened
            choices.append(_with_handle(handle, choice))
        if not choices:
            self._span.end()
            return
        self._call = EngineCall(self._engine_submit(choices), self)
        self._engines.dispatcher.start(self._call, resumed=self._submit.attempt > 1, alone=self._submit.alone)

    def _rules(self) -> OutputRules:
        """Returns by which rules tokens become an answer; the ids of tool calls come from the request's seed."""
        facts = self._engines.dispatcher.peer
        self._know_seed(self._submit.seed)
        return _output_rules(self._submit, facts.engine if facts is not None else pb.EngineFacts())

    def _new_output(self, choice: pb.Choice, rules: OutputRules) -> ChoiceOutput | TokenOutput:
        answer_format = self._plan.format
        if not self._has_text and not rules.stop and answer_format is None:
            return TokenOutput()
        divider = AnswerDivider(answer_format, choice.choice) if answer_format is not None else None
        return ChoiceOutput(self._vocabulary.tokenizer, self._prompt, rules, divider)

    def _know_seed(self, seed: int) -> None:
        """Takes the request's seed, by which the ids of its tool calls are made: its own, or the engine's."""
        if self._plan.format is not None:
            self._plan.format.ids.seed = seed

    def abort(self, caller_handle: int) -> None:
        """Aborts a choice, without a terminal message: the caller has closed it."""
        for handle, choice in list(self._choices.items()):
            if choice.handle == caller_handle and self._call is not None:
                self._engines.dispatcher.abort_choice(self._call, handle)
                del self._choices[handle]
                self._close(caller_handle)

    def accepted(self, handle: int, accepted: engine_pb2.Accepted) -> None:
        choice = self._choices[handle]
        choice.cached_tokens = accepted.cached_tokens
        self._know_seed(accepted.seed)
        text = text_pb2.TextAccepted(
            handle=choice.handle,
            seed=accepted.seed,
            cached_tokens=accepted.cached_tokens,
            sampling=accepted.sampling if accepted.HasField("sampling") else None,
            numerics_id=accepted.numerics_id,
        )
        if self._submit.sampling.HasField("prompt_logprobs"):
            text.first_prompt_token = self._vocabulary.token_bytes(self._prompt[0])
        if not self._resolved_sent:
            self._add_resolved(text)
            self._resolved_sent = True
        self._mailbox.put_accepted(text)

    def _add_resolved(self, accepted: text_pb2.TextAccepted) -> None:
        """Adds what a resume sends and the submit does not have: prompt ids, and what the output resolved to."""
        submit, prompt = self._submit, pack_u32(self._prompt)
        if submit.WhichOneof("input") != "prompt_token_ids" or submit.prompt_token_ids != prompt:
            accepted.prompt_token_ids = prompt
        if not submit.HasField("resolved") and self._resolved.ListFields():
            accepted.resolved.CopyFrom(self._resolved)

    def prompt_logprobs(self, scored: pb.PromptLogprobs) -> None:
        self._mailbox.put_prompt_logprobs(self._scored_texts.of(scored, self._choices[scored.handle].handle))

    def tokens(self, handle: int, start_index: int, token_ids: list[int], logprobs: TokenLogprobColumns) -> None:
        choice = self._choices[handle]
        if self._not_started and choice.handle in self._not_started:
            self._not_started.discard(choice.handle)
            self._listener.started(choice.handle)
        if self._prompt_only:
            return
        released = choice.output.push(token_ids)
        self._mailbox.put_tokens(
            choice.handle,
            start_index,
            token_ids[: released.num_tokens],
            released.pieces if choice.is_plain else self._sent(choice, released.pieces),
            self._token_logprobs(logprobs, released.offsets) if logprobs.width else [],
        )
        if choice.output.is_over:
            assert self._call is not None
            self._engines.dispatcher.abort_choice(self._call, handle)
            self._end(self._choices.pop(handle), None)

    def _sent(self, choice: _Choice, pieces: list[Piece]) -> list[Piece]:
        """Returns the pieces that are sent for these: with the text before them, or none in an answer without text."""
        if not self._has_text:
            return []
        lead, choice.lead, choice.is_plain = choice.lead, "", True
        return [*of_content(lead), *pieces]

    def ended(self, handle: int, terminal: engine_pb2.Terminal) -> None:
        self._end(self._choices.pop(handle), terminal)

    def _end(self, choice: _Choice, terminal: engine_pb2.Terminal | None) -> None:
        """Sends the choice's terminal message and closes it. `terminal`: the engine's; None: the choice ended here."""
        facts = self._engines.dispatcher.peer
        reason = terminal.reason if terminal is not None else pb.FINISH_REASON_STOP
        if self._prompt_only and reason == pb.FINISH_REASON_STOP:
            reason = pb.FINISH_REASON_LENGTH
        pieces = self._sent(choice, choice.output.flush(stopped=reason == pb.FINISH_REASON_STOP))
        text = text_pb2.TextTerminal(
            handle=choice.handle,
            reason=reason,
            pieces=[text for _, text in pieces],
            piece_kinds=kinds_of(pieces),
            prompt_tokens=len(self._prompt),
            output_tokens=choice.output.num_tokens,
            cached_tokens=choice.cached_tokens,
            numerics_id=facts.engine.numerics_id if facts is not None else "",
            weights_version=facts.engine.weights_version if facts is not None else "",
            reasoning_tokens=choice.output.num_reasoning_tokens,
        )
        if choice.output.stop_string is not None:
            text.stop_string = choice.output.stop_string
        if terminal is not None:
            if terminal.HasField("stop_token_id") and reason == pb.FINISH_REASON_STOP:
                text.stop_token_id = terminal.stop_token_id
            if terminal.HasField("error"):
                text.error.CopyFrom(terminal.error)
                if terminal.error.param == ENGINE_GRAMMAR:
                    text.error.param = grammar_field(self._submit.output)
        self._mailbox.put_terminal(text)
        if self._plan.parses_calls:
            self._listener.parsed(choice.output.num_calls, choice.output.num_broken_calls)
        self._close(choice.handle)

    def _close(self, caller_handle: int) -> None:
        self._listener.ended(caller_handle)
        self._num_open -= 1
        if self._num_open == 0:
            self._call = None  # it refers to its listener, this request
            self._span.end()

    def _engine_submit(self, choices: list[pb.Choice]) -> engine_pb2.Submit:
        submit = self._submit
        sampling = pb.SamplingParams()
        sampling.CopyFrom(submit.sampling)
        sampling.bad_words_token_ids.extend(self._resolved.bad_words_token_ids)
        if self._plan.thinking_budget is not None:
            sampling.thinking_budget.CopyFrom(self._plan.thinking_budget)
        return engine_pb2.Submit(
            request_id=submit.request_id,
            attempt=max(0, submit.attempt - 1),  # Call.next_submit adds 1: a resumed submit keeps an attempt above 1
            prompt_token_ids=pack_u32(self._prompt),
            seed=submit.seed if submit.HasField("seed") else None,
            choices=choices,
            sampling=sampling,
            return_sampling=submit.return_sampling,
            cache_salt=submit.cache_salt,
            cache_group=submit.cache_group,
            priority=submit.priority,
            traceparent=self._span.traceparent,
            grammar=self._resolved.grammar,
            numerics_id=submit.numerics_id,
            trial_tokens=submit.trial_tokens,
            waited_ms=submit.waited_ms,
        )

    def _token_logprobs(self, logprobs: TokenLogprobColumns, offsets: list[int]) -> list[text_pb2.TokenLogprobs]:
        """Returns one entry per item of `offsets`: where a token's text starts in the choice's text, in characters."""
        found = []
        for index, offset in enumerate(offsets):
            sampled, *top = [self._token_logprob(token_id, value) for token_id, value in logprobs.of_token(index)]
            offset += self._lead_characters
            found.append(text_pb2.TokenLogprobs(sampled=sampled, top=top, text_offset=offset))
        return found

    def _token_logprob(self, token_id: int, value: float) -> text_pb2.TokenLogprob:
        raw = self._vocabulary.token_bytes(token_id) if self._has_text else b""
        return text_pb2.TokenLogprob(
            token=raw.decode(errors="replace"), token_bytes=raw, logprob=value, token_id=token_id
        )


def put_errors(handles: list[int], error: TandemError, mailbox: ChoiceMailbox) -> None:
    """Puts a terminal message with this error into the mailbox for each choice. No engine may be running them."""
    for handle in handles:
        mailbox.put_terminal(
            text_pb2.TextTerminal(handle=handle, reason=pb.FINISH_REASON_ERROR, error=error.to_proto())
        )


def _with_handle(handle: int, choice: pb.Choice) -> pb.Choice:
    copy = pb.Choice()
    copy.CopyFrom(choice)
    copy.handle = handle
    return copy


def _output_rules(submit: text_pb2.TextSubmit, facts: pb.EngineFacts) -> OutputRules:
    ends = set(submit.sampling.stop_token_ids)
    if not submit.sampling.ignore_eos:
        ends |= set(facts.eos_token_ids)
    return OutputRules(
        stop=list(submit.output.stop),
        include_stop_str_in_output=submit.output.include_stop_str_in_output,
        skip_special_tokens=submit.output.skip_special_tokens,
        spaces_between_special_tokens=submit.output.spaces_between_special_tokens,
        stop_token_ids=frozenset(ends),
        min_tokens=submit.sampling.min_tokens,
    )
