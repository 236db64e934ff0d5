"""The timeline of one choice in the engine; when the choice ends, it becomes metrics and spans."""

from dataclasses import dataclass

from engine_core.events import Finished
from services.telemetry.spans import NO_SPAN, Span, Tracing, now

NANO = 1e-9


@dataclass(slots=True)
class Timeline:
    """When one choice reached each stage, in nanoseconds since the epoch; 0 for a stage that it did not reach."""

    span: Span = NO_SPAN
    arrived: int = 0
    scheduled: int = 0  # its first step was planned
    first_token: int = 0
    ended: int = 0

    def record_tokens(self, planned: int, done: int) -> None:
        """Sets `first_token` to `done` and `scheduled` to `planned`, if they are 0. A step's StepTimes has both."""
        self.scheduled = self.scheduled or planned
        self.first_token = self.first_token or done

    def seconds(self) -> dict[str, float]:
        """Returns the seconds of each stage that was reached, by metric name. Call it after `ended` is set."""
        found = {}
        if self.scheduled:
            found["request_queue_time_seconds"] = (self.scheduled - self.arrived) * NANO
            found["request_inference_time_seconds"] = (self.ended - self.scheduled) * NANO
        if self.first_token:
            found["request_prefill_time_seconds"] = (self.first_token - self.scheduled) * NANO
            found["request_decode_time_seconds"] = (self.ended - self.first_token) * NANO
        return found


def start_timeline(tracing: Tracing, traceparent: str) -> Timeline:
    """Returns the timeline of a choice that arrives now, with its span, a child of `traceparent`."""
    arrived = now()
    return Timeline(tracing.start("engine.request", traceparent, at=arrived), arrived)


def end_timeline(timeline: Timeline, tracing: Tracing, finished: Finished, ended: int) -> None:
    """Sets the timeline's end to `ended`, in ns since the epoch, and ends the choice's span then.

    If tracing is on, also writes child spans for queue, prefill and decode, as far as these were reached. An error in
    `finished` marks the choice's span as failed.
    """
    timeline.ended = ended
    span = timeline.span
    if not span.traceparent:
        return
    stages = (
        ("engine.queue", timeline.arrived, timeline.scheduled),
        ("engine.prefill", timeline.scheduled, timeline.first_token),
        ("engine.decode", timeline.first_token, timeline.ended),
    )
    for name, start, stop in stages:
        if start:
            tracing.start(name, span.traceparent, at=start).end(stop or timeline.ended)
    span.set(
        {
            "tandem.finish_reason": finished.stop.reason,
            "tandem.cached_tokens": finished.num_cached_tokens,
            "tandem.preemptions": finished.num_preemptions,
            "gen_ai.usage.input_tokens": finished.num_prompt_tokens,
            "gen_ai.usage.output_tokens": finished.num_output_tokens,
        }
    )
    span.end(timeline.ended, error=finished.stop.message)
