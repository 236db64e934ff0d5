"""Ministral 3 (https://huggingface.co/mistralai): yarn, and queries scaled by their position (llama_4_scaling_beta)."""

from services.worker.models.description import Description
from services.worker.models.families import mistral
from services.worker.models.settings import Settings

DEFAULTS = {
    **mistral.DEFAULTS,
    "vocab_size": 131072,
    "num_hidden_layers": 34,
    "head_dim": 128,
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-5,
    "sliding_window": None,
    "rope_parameters": {
        "type": "yarn",
        "rope_theta": 1000000.0,
        "factor": 16.0,
        "original_max_position_embeddings": 16384,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale_all_dim": 1.0,
        "mscale": 1.0,
        "llama_4_scaling_beta": 0.1,
    },
}


def describe(settings: Settings) -> Description:
    return mistral.describe(settings, queries_grow=True)
