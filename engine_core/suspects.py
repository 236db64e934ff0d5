"""Counts worker deaths per request, and decides which requests the next step may hold while one is under suspicion.

A death is a strike against every request that ran. Each is on *trial* from then on, until it has some new tokens: they
take its strikes back. A request with SUSPECT_AT strikes is a suspect: it runs alone until its trial ends or the worker
has died ALONE_DEATHS times more. Knows no blocks and no plans.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from engine_core.batch import Batch, Ints
from engine_core.request import SUSPECT_AT, Request
from engine_core.waiting import WaitingQueue

# Tokens. As many as may be lost with a worker and computed again before the one that kills: two steps are in flight.
FIRST_TRIAL = 4
LONGER = 4  # times the last trial: for a request that has ended it and was there at the next death, soon after
LONGEST_TRIAL = 64
# A death by chance may hit a suspect while it is alone; the next one hits a request that kills, again.
ALONE_DEATHS = 2
# A worker that has died more often than one request explains, without a suspect alone, dies for another reason as well.
# Then one death more is needed to end a suspect, and one for each death alone of a suspect that was innocent.
MAX_EXPLAINED = 3
MOST_INNOCENT = 3
RECENT_STEPS = 10_000


@dataclass(frozen=True, slots=True)
class StepRule:
    """Which requests the next step may hold: all if `suspect` is None, else only that one, while the others pause."""

    suspect: Request | None = None

    @property
    def waits_for_results(self) -> bool:
        """Whether the step may only be planned once all earlier results are back: a suspect is alone in flight."""
        return self.suspect is not None

    @property
    def preempts_to_admit(self) -> bool:
        """Whether running requests give up slots and blocks for the one that is to be admitted."""
        return self.suspect is not None

    def admits(self, request: Request) -> bool:
        return self.suspect is None or request is self.suspect

    def strikes(self, request: Request) -> bool:
        """Whether a worker's death in such a step counts against this running request: not if it was paused."""
        return self.suspect is None or request is self.suspect

    def victim(self, running: Sequence[Request]) -> Request:
        """Returns the request to preempt: the lowest-ranked one of `running` that is not the suspect."""
        return running[-1] if running[-1] is not self.suspect else running[-2]

    def restrict(self, wanted: Ints, batch: Batch) -> Ints:
        """Returns `wanted`, the tokens of each running request, [running] int32, with 0 for requests that pause."""
        if self.suspect is None:
            return wanted
        restricted: Ints = wanted * (batch.slots == (-1 if self.suspect.slot is None else self.suspect.slot))
        return restricted

    def restart_error(self, request: Request, capacity_tokens: int, guilty_at: int) -> str | None:
        """Returns why a request ends at the worker's restart, or None if it goes on.

        `capacity_tokens` is how many tokens fit into the new worker's KV cache, `guilty_at` the number of strikes at
        which the suspect ends, with all choices of its request that are suspects.
        """
        if request.num_prompt_tokens + request.sampling.max_tokens - 1 > capacity_tokens:
            return f"the next worker's KV cache is too small: {capacity_tokens} tokens"
        suspect = self.suspect
        if suspect is not None and suspect.strikes >= guilty_at and request.is_suspect and _equal(request, suspect):
            return "the worker died while it ran this request alone"
        return None


NO_SUSPECT = StepRule()


class Suspects:
    """The handles of all requests that are suspects, waiting or running."""

    def __init__(self) -> None:
        self._handles: set[int] = set()
        self._shared_deaths: deque[int] = deque()  # deaths while no suspect ran alone: numbers of steps before them
        # The deaths alone, the last few, of requests whose trial ended later: numbers of steps before their last one.
        self._innocent_deaths: deque[int] = deque(maxlen=MOST_INNOCENT)
        self._last_death = 0

    def step_rule(self, running: Sequence[Request], waiting: WaitingQueue, last: StepRule) -> StepRule:
        """Returns the rule for the next step: NO_SUSPECT if no suspect could run, else the rule for one of them.

        A running one comes first, then the first of the queue, which ranks suspects first. When one has left (`last`
        was its rule), the others get a step before the next suspect, so that many suspects don't stop them for long.
        """
        if not self._handles:
            return NO_SUSPECT
        suspect = next((one for one in running if one.handle in self._handles), None)
        if suspect is None and (last.suspect is None or not (running or waiting.peek(suspects=False))):
            suspect = waiting.peek()
        return StepRule(suspect) if suspect is not None and suspect.handle in self._handles else NO_SUSPECT

    def watch(self, request: Request) -> None:
        """Registers a request as a suspect if it has at least SUSPECT_AT strikes; a new one may already have them."""
        if request.is_suspect:
            self._handles.add(request.handle)

    @property
    def guilty_at(self) -> int:
        """The strikes at which a suspect ends. More are needed if the worker also dies for another reason."""
        return SUSPECT_AT + ALONE_DEATHS + (len(self._shared_deaths) > MAX_EXPLAINED) + len(self._innocent_deaths)

    def strike(self, running: Sequence[Request], rule: StepRule, num_steps: int) -> None:
        """Counts the worker's death as a strike against those of `running` that `rule` did not pause. `num_steps`: of
        all workers so far."""
        if rule.suspect is None:
            self._shared_deaths.append(num_steps)
        for deaths in (self._shared_deaths, self._innocent_deaths):
            while deaths and deaths[0] < num_steps - RECENT_STEPS:
                deaths.popleft()
        self._last_death = num_steps
        for request in running:
            if rule.strikes(request):
                request.trial = _next_trial(request)
                request.trial_end = request.num_output_tokens + request.trial
                request.strikes += 1
            self.watch(request)

    def clear(self, request: Request) -> None:
        """Takes back all strikes of a request, for its trial has ended."""
        self._innocent_deaths.extend((request.strikes - SUSPECT_AT) * [self._last_death])
        request.strikes = 0
        self._handles.discard(request.handle)

    def forget(self, request: Request) -> None:
        """Drops a request that has ended."""
        self._handles.discard(request.handle)


def _equal(request: Request, other: Request) -> bool:
    """Returns whether both are choices of one request, or of two that would do the same."""
    if request.seed != other.seed or request.num_prompt_tokens != other.num_prompt_tokens:
        return False
    return request.token_ids[: request.num_prompt_tokens] == other.token_ids[: other.num_prompt_tokens]


def _next_trial(request: Request) -> int:
    """Returns how many new tokens end the trial of a request after a worker's death."""
    if request.trial == 0 or request.num_output_tokens >= request.trial_end - request.trial + LONGEST_TRIAL:
        return FIRST_TRIAL
    return request.trial if request.strikes else min(LONGER * request.trial, LONGEST_TRIAL)
