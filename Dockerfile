# syntax=docker/dockerfile:1

# Two images:
#   api      front end, scheduler, deliverer and migrations; without torch
#   worker   the same and torch with CUDA, which comes inside torch's wheels; the driver is the host's

ARG PYTHON_VERSION=3.12
FROM python:${PYTHON_VERSION}-slim-bookworm AS base
ENV PATH=/opt/rankmill/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
RUN groupadd --gid 10001 rankmill \
    && useradd --uid 10001 --gid rankmill --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin rankmill

FROM base AS build-api
RUN python -m venv /opt/rankmill
WORKDIR /source
COPY . .
RUN --mount=type=cache,target=/root/.cache/pip pip install --constraint constraints.txt ".[parquet]"

FROM base AS build-worker
RUN python -m venv /opt/rankmill
WORKDIR /source
# torch first: it is most of the image, and changes least. Another index gives another build of it, such as one without CUDA.
ARG TORCH_INDEX_URL=
COPY constraints.txt .
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install ${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"} --constraint constraints.txt torch
COPY . .
RUN --mount=type=cache,target=/root/.cache/pip pip install --constraint constraints.txt ".[worker,parquet]"

FROM base AS api
COPY --from=build-api /opt/rankmill /opt/rankmill
USER 10001:10001
EXPOSE 8000
ENTRYPOINT ["rankmill"]
CMD ["api"]

FROM base AS worker
# Triton compiles a small C launcher for each kernel at run time.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
# A named volume that is mounted here takes over its owner.
RUN install --directory --owner=rankmill --group=rankmill /cache
ENV HF_HOME=/cache/huggingface \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    TORCHINDUCTOR_CACHE_DIR=/cache/inductor \
    TRITON_CACHE_DIR=/cache/triton
COPY --from=build-worker /opt/rankmill /opt/rankmill
USER 10001:10001
ENTRYPOINT ["rankmill"]
CMD ["worker"]
