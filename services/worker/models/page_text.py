"""The text of docs/models.md around what is made from the code (page.py)."""

DEVICES = {
    "cpu": "compiled C++ for AMX, AVX-512 with bf16, AVX2 and any other CPU",
    "cuda": "Triton; tested by its interpreter and on an H200 (docs/gpu.md), compiled for sm_80",
}

INTRODUCTION = """\
# Models

Made from the code by `make docs`; `tandem models` prints the same table.

A checkpoint is a directory, or a repository of the Hugging Face hub, with `config.json`, `tokenizer.json` and
safetensors. The first architecture in `architectures` that the table has is served. The base decoder is that of
Llama: RMS norm, grouped-query attention with rotary embeddings, SwiGLU, no biases.

What a family does not read and what changes the result is refused, with the key of config.json. No setting is accepted
and ignored. A model that is refused, or whose weights do not fit into memory, is not downloaded first."""

NEW_FAMILY = """\
## Add a family in an hour

1. Read its modeling file in transformers. If all that it computes is in
   [description.py](../services/worker/models/description.py), the family is one small file.
2. A file in `services/worker/models/families/`: a first sentence that names the models and what they add (it becomes
   the line above), `DEFAULTS` from transformers' config class, and `describe(settings)`. Every key of config.json that
   changes the result is read there. Tensors with other names than Llama's: `Names`.
3. Its line in `FAMILIES` ([describe.py](../services/worker/models/describe.py)), and `make docs`.
4. Two tiny configurations in `tests/worker/models/parity_cases.py` that exercise its traits.
   `pytest tests/worker/models` compares its defaults, its tokens and its logprobs with transformers.
5. Is something new: a field of the description, its operation in
   [operations.py](../services/worker/models/operations.py), and if no operation of
   [program.py](../kernels/program.py) computes it, a kernel ([contributing.md](contributing.md#add-a-kernel)).

EXAONE 4 came so: [one file](../services/worker/models/families/exaone4.py), its line in `FAMILIES`, two configurations,
within ten minutes. Its traits were all there."""
