# Builds two images.
#   docker build -t tandem .                       all roles: docker run -p 127.0.0.1:8000:8000 tandem  (the demo model)
#   docker build -t tandem-light --target light .  all roles but the worker: docker run tandem-light engine ...
# constraints.txt pins the versions of all packages in both.
FROM python:3.11-slim-bookworm AS base
COPY constraints.txt /opt/tandem/
WORKDIR /opt/tandem
RUN useradd --create-home --uid 1000 tandem && \
    su tandem -c 'mkdir -p /home/tandem/.cache/huggingface' && \
    install --directory --owner=tandem --group=tandem --mode=0700 /run/tandem

# The compiler stays in this stage; the images copy only the wheel.
FROM base AS build
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY pyproject.toml setup.py README.md LICENSE ./
COPY services services
COPY engine_core engine_core
COPY kernels kernels
COPY demo demo
COPY loadtest loadtest
# Both variables reach the isolated build: the first up to pip 25.2, the second from 25.3.
RUN PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
    pip wheel --no-cache-dir --no-deps --wheel-dir dist .

# Shim, tokenizer and engine, without torch; [grpc] for the shim's --grpc-port.
FROM base AS light
COPY --from=build /opt/tandem/dist dist
RUN pip install --no-cache-dir --constraint constraints.txt "$(echo dist/*.whl)[grpc]"
USER tandem
WORKDIR /home/tandem
EXPOSE 8000
ENTRYPOINT ["tandem"]

# torch and its dependencies are a layer of their own, which stays cached when tandem changes.
FROM base AS torch
# The requirement or wheel of torch, and its package index (empty: pip's default), as in the Makefile.
ARG TORCH=torch==2.13.0
ARG TORCH_INDEX=
RUN pip install --no-cache-dir --no-deps --constraint constraints.txt "$TORCH" ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} && \
    pip install --no-cache-dir --constraint constraints.txt torch

FROM torch
COPY --from=build /opt/tandem/dist dist
RUN pip install --no-cache-dir --constraint constraints.txt "$(echo dist/*.whl)[all]"
USER tandem
WORKDIR /home/tandem
EXPOSE 8000
ENTRYPOINT ["tandem"]
CMD ["serve", "--host", "0.0.0.0"]
