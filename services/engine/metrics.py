"""The engine's Prometheus metrics: its state after every step and command, and the times and counts of each choice.

Names, labels and buckets are vLLM's, so that its dashboards and autoscalers work as they are
(https://docs.vllm.ai/en/latest/usage/metrics/).
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from engine_core.events import SchedulerStats
from engine_core.worker_messages import ModelFacts
from services.process.metrics_server import ENGINE

SECONDS = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0)
TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
LABELS = ("model_name", "engine")
CACHE_LABELS = (
    "block_size",
    "num_gpu_blocks",
    "enable_prefix_caching",
    "kv_cache_size_tokens",
    "kv_cache_max_concurrency",
    "engine",
)
REJECTIONS = ("max_num_queued_reqs", "max_num_queued_tokens")
GAUGES = {
    "num_requests_running": "Requests in the running batch.",
    "num_requests_waiting": "Requests waiting to be scheduled.",
    "kv_cache_usage_perc": "Fraction of the KV cache in use, 0 to 1.",
}
COUNTERS = {
    "prefix_cache_queries": "Tokens looked up in the prefix cache.",
    "prefix_cache_hits": "Tokens found in the prefix cache.",
    "num_preemptions": "Preemptions of requests: blocks freed, to be computed again.",
}
HISTOGRAMS: dict[str, tuple[str, tuple[float, ...]]] = {
    "request_queue_time_seconds": ("Seconds from arrival to the first step.", SECONDS),
    "request_prefill_time_seconds": ("Seconds from the first step to the first token.", SECONDS),
    "request_decode_time_seconds": ("Seconds from the first token to the end.", SECONDS),
    "request_inference_time_seconds": ("Seconds from the first step to the end.", SECONDS),
    "request_num_preemptions": ("Preemptions of a request.", (0, 1, 2, 4, 8)),
    "request_prefill_kv_computed_tokens": ("Prompt tokens of a request that were not in the prefix cache.", TOKENS),
    "iteration_tokens_total": ("Tokens computed in a step, and the first token of each answer.", TOKENS),
}


class EngineMetrics:
    """The series of one model, made when the first worker registers. All exist from then on, at 0.

    Used by the event loop's thread alone.
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
        self._deferred = waiting.labels(*labels, "deferred")
        rejections = Counter(
            "vllm:admission_rejections",
            "Requests refused because a queue limit was reached.",
            (*LABELS, "reason"),
            registry=registry,
        )
        self._rejections = {reason: rejections.labels(*labels, reason) for reason in REJECTIONS}
        self._prefix_caching = prefix_caching
        self._kv_cache = Gauge(
            "vllm:cache_config_info",
            "The KV cache's configuration; the value is always 1.",
            CACHE_LABELS,
            registry=registry,
        )
        self.record_kv_cache(facts)
        self._last: SchedulerStats | None = None

    def record_kv_cache(self, facts: ModelFacts) -> None:
        """Shows the KV cache of the worker that has registered, in place of the one before."""
        self._kv_cache.clear()
        self._kv_cache.labels(*_cache_config(facts, self._prefix_caching)).set(1)

    def record_state(self, stats: SchedulerStats) -> None:
        """Sets the gauges; adds to the counters what `stats` has grown by since the last call, nothing at the first."""
        self._gauges["num_requests_running"].set(stats.num_running)
        self._gauges["num_requests_waiting"].set(stats.num_waiting)
        self._waiting_for_capacity.set(stats.num_waiting - stats.num_deferred)
        self._deferred.set(stats.num_deferred)
        self._gauges["kv_cache_usage_perc"].set(1 - stats.num_free_blocks / stats.num_blocks)
        last, self._last = self._last, stats
        if last is None:
            return
        for name, counter in self._counters.items():
            counter.inc(getattr(stats, name) - getattr(last, name))

    def record_step(self, num_tokens: int) -> None:
        """Records one step. `num_tokens`: as in StepTimes."""
        self._histograms["iteration_tokens_total"].observe(num_tokens)

    def record_rejection(self, reason: str) -> None:
        """Counts a refused submit. `reason` names the option of the limit that was reached, one of REJECTIONS."""
        self._rejections[reason].inc()

    def record_end(self, times: dict[str, float], num_preemptions: int, num_computed_prompt_tokens: int) -> None:
        """Records one ended choice. `times`: seconds by metric name, only of the stages that the choice reached.

        The two counts are recorded only if the choice had a token.
        """
        for name, seconds in times.items():
            self._histograms[name].observe(seconds)
        if "request_prefill_time_seconds" in times:
            self._histograms["request_num_preemptions"].observe(num_preemptions)
            self._histograms["request_prefill_kv_computed_tokens"].observe(num_computed_prompt_tokens)


def _cache_config(facts: ModelFacts, prefix_caching: bool) -> tuple[object, ...]:
    """Returns the values of CACHE_LABELS.

    As in vLLM: kv_cache_max_concurrency is how many requests of the full length fit into the KV cache, and
    kv_cache_size_tokens that number of such requests in tokens.
    """
    concurrency = facts.kv_cache_concurrency
    size = int(concurrency * facts.max_model_len)
    return facts.block_size, facts.num_blocks, prefix_caching, size, concurrency, ENGINE
