# One image, every role: docker run -p 8000:8000 tandem            (tandem serve, the demo model)
#                        docker run tandem worker MODEL --engine=...  (one role)
FROM python:3.11-slim-bookworm AS base
# The requirement or wheel of torch, and the index that it comes from (empty: pip's own), as in the Makefile.
ARG TORCH=torch==2.13.0
ARG TORCH_INDEX=
RUN pip install --no-cache-dir "$TORCH" ${TORCH_INDEX:+--index-url "$TORCH_INDEX"}

# The compiler stays behind: only the wheel goes on.
FROM base AS build
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/tandem
COPY pyproject.toml setup.py README.md LICENSE ./
COPY services services
COPY engine_core engine_core
COPY kernels kernels
COPY demo demo
COPY loadtest loadtest
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /opt/wheels .

FROM base
COPY --from=build /opt/wheels /opt/wheels
RUN pip install --no-cache-dir /opt/wheels/*.whl
RUN useradd --create-home --uid 1000 tandem
USER tandem
WORKDIR /home/tandem
RUN mkdir -p .cache/huggingface
EXPOSE 8000
ENTRYPOINT ["tandem"]
CMD ["serve", "--host", "0.0.0.0"]
