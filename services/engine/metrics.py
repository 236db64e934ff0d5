"""What an engine tells Prometheus: its state after every step, and how long each choice waited and ran.

Names, labels and buckets are vLLM's, so that its dashboards and autoscalers work as they are
(https://docs.vllm.ai/en/latest/usage/metrics/).
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from engine_core.events import SchedulerStats
from engine_core.worker_messages import ModelFacts
from services.telemetry.metrics_server import ENGINE

SECONDS = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0)
TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
LABELS = ("model_name", "engine")
REJECTIONS = ("max_num_queued_reqs", "max_num_queued_tokens")
GAUGES = {
    "num_requests_running": "Requests that run now.",
    "num_requests_waiting": "Requests that wait for their turn.",
    "kv_cache_usage_perc": "Share of the KV cache in use; 1 is all of it.",
}
COUNTERS = {
    "prefix_cache_queries": "Tokens looked up in the prefix cache.",
    "prefix_cache_hits": "Tokens found in the prefix cache.",
    "num_preemptions": "Requests that gave their blocks back and started over.",
}
HISTOGRAMS: dict[str, tuple[str, tuple[float, ...]]] = {
    "request_queue_time_seconds": ("From arrival to the first step.", SECONDS),
    "request_prefill_time_seconds": ("From the first step to the first token.", SECONDS),
    "request_decode_time_seconds": ("From the first token to the end.", SECONDS),
    "request_inference_time_seconds": ("From the first step to the end.", SECONDS),
    "request_num_preemptions": ("Preemptions of a request.", (0, 1, 2, 4, 8)),
    "request_prefill_kv_computed_tokens": ("Prompt tokens computed, not found in the prefix cache.", TOKENS),
    "iteration_tokens_total": ("Tokens computed in a step.", TOKENS),
}


class EngineMetrics:
    """The series of one model, all there from the start, at 0: an absent one cannot be told from a broken scrape.

    Only the event loop's thread calls it.
    """

    def __init__(self, registry: CollectorRegistry, prefix_caching: bool, facts: ModelFacts) -> None:
        labels = (facts.served_model_names[0], ENGINE)
        self._gauges = {
            name: Gauge(f"vllm:{name}", text, LABELS, registry=registry).labels(*labels)
            for name, text in GAUGES.items()
        }
        self._counters = {
            name: Counter(f"vllm:{name}", text, LABELS, registry=registry).labels(*labels)
            for name, text in COUNTERS.items()
        }
        self._histograms = {
            name: Histogram(f"vllm:{name}", text, LABELS, registry=registry, buckets=buckets).labels(*labels)
            for name, (text, buckets) in HISTOGRAMS.items()
        }
        waiting = Gauge(
            "vllm:num_requests_waiting_by_reason", "Waiting requests by reason.", (*LABELS, "reason"), registry=registry
        )
        self._waiting_for_capacity = waiting.labels(*labels, "capacity")
        rejections = Counter(
            "vllm:admission_rejections",
            "Submits refused, by the limit reached.",
            (*LABELS, "reason"),
            registry=registry,
        )
        self._rejections = {reason: rejections.labels(*labels, reason) for reason in REJECTIONS}
        Gauge(
            "vllm:cache_config_info",
            "The KV cache's configuration; the value is always 1.",
            ("block_size", "num_gpu_blocks", "enable_prefix_caching", "engine"),
            registry=registry,
        ).labels(facts.block_size, facts.num_blocks, prefix_caching, ENGINE).set(1)
        self._last: SchedulerStats | None = None

    def state(self, stats: SchedulerStats) -> None:
        """After every step, and whenever requests came or went between steps."""
        self._gauges["num_requests_running"].set(stats.num_running)
        self._gauges["num_requests_waiting"].set(stats.num_waiting)
        self._waiting_for_capacity.set(stats.num_waiting)
        self._gauges["kv_cache_usage_perc"].set(1 - stats.num_free_blocks / stats.num_blocks)
        last, self._last = self._last, stats
        if last is None:
            return
        for name, counter in self._counters.items():
            counter.inc(getattr(stats, name) - getattr(last, name))

    def step(self, num_tokens: int) -> None:
        """A step has computed so many tokens."""
        self._histograms["iteration_tokens_total"].observe(num_tokens)

    def rejected(self, reason: str) -> None:
        """A submit was refused; `reason` is the option whose limit was reached."""
        self._rejections[reason].inc()

    def ended(self, times: dict[str, float], num_preemptions: int, num_computed_prompt_tokens: int) -> None:
        """One choice is over. `times` in seconds, without the stages that it did not reach."""
        for name, seconds in times.items():
            self._histograms[name].observe(seconds)
        if "request_prefill_time_seconds" in times:
            self._histograms["request_num_preemptions"].observe(num_preemptions)
            self._histograms["request_prefill_kv_computed_tokens"].observe(num_computed_prompt_tokens)
