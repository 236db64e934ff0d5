"""What a shim tells Prometheus: the requests as their clients saw them. Names, labels and buckets are vLLM's."""

from prometheus_client import CollectorRegistry, Counter, Histogram

from services.rpc.finish_reasons import REASON_BY_NAME
from services.telemetry.metrics_server import ENGINE

LABELS = ("model_name", "engine")
REJECTIONS = ("max_concurrent_requests", "body_bytes")
FIRST_TOKEN = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip
BETWEEN_TOKENS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
WHOLE = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
TOKENS = tuple(mantissa * 10**exponent for exponent in range(6) for mantissa in (1, 2, 5))
CHOICES = (1, 2, 5, 10, 20)
COUNTERS = {
    "prompt_tokens": "Tokens of prompts.",
    "prompt_tokens_cached": "Tokens of prompts that were found in the prefix cache.",
    "generation_tokens": "Tokens of answers.",
}
HISTOGRAMS: dict[str, tuple[str, tuple[float, ...]]] = {
    "time_to_first_token_seconds": ("From the request to a choice's first token.", FIRST_TOKEN),
    "inter_token_latency_seconds": ("Between two tokens of a choice.", BETWEEN_TOKENS),
    "request_time_per_output_token_seconds": ("A choice's mean time between tokens.", BETWEEN_TOKENS),
    "e2e_request_latency_seconds": ("From the request to a choice's end.", WHOLE),
    "request_prompt_tokens": ("Tokens of a prompt.", TOKENS),
    "request_generation_tokens": ("Tokens of a choice.", TOKENS),
    "request_params_n": ("Choices asked for.", CHOICES),
    "request_params_max_tokens": ("Limit of tokens asked for.", TOKENS),
}


class ModelMetrics:
    """The series of one model."""

    def __init__(
        self, counters: dict[str, Counter], histograms: dict[str, Histogram], success: Counter, model: str
    ) -> None:
        labels = (model, ENGINE)
        found = {name: family.labels(*labels) for name, family in counters.items()}
        self.prompt_tokens = found["prompt_tokens"]
        self.prompt_tokens_cached = found["prompt_tokens_cached"]
        self.generation_tokens = found["generation_tokens"]
        seen = {name: family.labels(*labels) for name, family in histograms.items()}
        self.first_token = seen["time_to_first_token_seconds"]
        self.between_tokens = seen["inter_token_latency_seconds"]
        self.per_output_token = seen["request_time_per_output_token_seconds"]
        self.latency = seen["e2e_request_latency_seconds"]
        self.request_prompt_tokens = seen["request_prompt_tokens"]
        self.request_generation_tokens = seen["request_generation_tokens"]
        self.params_n = seen["request_params_n"]
        self.params_max_tokens = seen["request_params_max_tokens"]
        self.finished = {reason: success.labels(*labels, reason) for reason in REASON_BY_NAME}


class ShimMetrics:
    """One per process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._counters = {
            name: Counter(f"vllm:{name}", text, LABELS, registry=registry) for name, text in COUNTERS.items()
        }
        self._histograms = {
            name: Histogram(f"vllm:{name}", text, LABELS, registry=registry, buckets=buckets)
            for name, (text, buckets) in HISTOGRAMS.items()
        }
        self._success = Counter(
            "vllm:request_success", "Choices that ended, by reason.", (*LABELS, "finished_reason"), registry=registry
        )
        self._models: dict[str, ModelMetrics] = {}
        self.http_requests = Counter(
            "tandem:http_requests", "Answers over HTTP.", ("method", "path", "status"), registry=registry
        )
        self.http_rejections = Counter(
            "tandem:http_rejections", "Requests refused at this process's own limits.", ("reason",), registry=registry
        )
        for reason in REJECTIONS:
            self.http_rejections.labels(reason)

    def of(self, model: str) -> ModelMetrics:
        """The first call makes all of the model's series appear, at 0."""
        if model not in self._models:
            self._models[model] = ModelMetrics(self._counters, self._histograms, self._success, model)
        return self._models[model]
