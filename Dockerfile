# One image, every role: docker run -p 8000:8000 tandem            (tandem serve, the demo model)
#                        docker run tandem worker MODEL --engine=...  (one role)
FROM python:3.11-slim-bookworm

# The requirement or wheel of torch, and the index that it comes from (empty: pip's own), as in the Makefile.
ARG TORCH=torch==2.13.0
ARG TORCH_INDEX=

RUN useradd --create-home --uid 1000 tandem
RUN pip install --no-cache-dir "$TORCH" ${TORCH_INDEX:+--index-url "$TORCH_INDEX"}
WORKDIR /opt/tandem
COPY pyproject.toml README.md LICENSE ./
COPY services services
COPY engine_core engine_core
COPY kernels kernels
COPY demo demo
COPY loadtest loadtest
RUN pip install --no-cache-dir .

USER tandem
WORKDIR /home/tandem
RUN mkdir -p .cache/huggingface
EXPOSE 8000
ENTRYPOINT ["tandem"]
CMD ["serve", "--host", "0.0.0.0"]
