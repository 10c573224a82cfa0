"""The one place where Rankmill is configured: environment variables with the prefix ``RANKMILL_``.

Built by entry points only; everything else receives values. Every field stands in ``docs/settings.md`` (a test checks).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from core.allowances import to_networks, to_ports

Seconds = Annotated[float, Field(gt=0, le=86_400)]
Beat = Annotated[float, Field(gt=0, le=10)]  # what must beat faster than Postgres or the scheduler lose patience
Count = Annotated[int, Field(ge=1)]
Limit = Annotated[int, Field(ge=0)]  # 0: none
Port = Annotated[int, Field(ge=0, le=65_535)]
Cidrs = Annotated[str, AfterValidator(lambda text: (to_networks(text), text)[1])]
Ports = Annotated[str, AfterValidator(lambda text: (to_ports(text), text)[1])]


class Settings(BaseSettings):
    """All settings, bounded. Frozen: a process runs with what it was started with."""

    model_config = SettingsConfigDict(env_prefix="RANKMILL_", frozen=True, extra="ignore")

    # what to reach
    database_url: str = Field("", description="Postgres, as postgresql://user:password@host/database.")
    redis_url: str = Field("", description="Redis or Valkey, as redis://host:port/0.")
    redis_prefix: str = Field("rankmill:", description="Prefix of every key in Redis.")
    database_pool_size: Annotated[int, Field(ge=1, le=200)] = Field(10, description="Connections a process keeps.")

    # the model
    model: str = Field("fake", description="`fake`, an entry of `models.toml`, a folder, a hub id, or a .gguf file.")
    models_file: str = Field("", description="A `models.toml` of your own; its entries replace ours of the same name.")
    model_name: str = Field("", description="The name clients use; default: the last part of `model`.")
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d{1,3})?)$")] = Field(
        "auto",
        description="`auto`, `cpu`, `cuda`, or `cuda:1` for one GPU of several. `auto`: CUDA where there is a GPU.",
    )
    gpu_dir: str = Field(
        "", description="Where the workers of a machine note which GPU each has; empty: a temporary one."
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16", "fp8"] = Field(
        "auto",
        description="`auto`: float32 on a CPU, the checkpoint's own on CUDA. `fp8`: see [fp8](scores.md#fp8).",
    )
    engine: Literal["auto", "padded", "packed"] = Field(
        "auto", description="How batches are laid out. `auto`: the fastest proven for the device."
    )
    label_gather: Literal["auto", "triton", "reference"] = Field(
        "auto", description="Reads label log-probabilities from logits. `auto`: Triton on CUDA, reference on a CPU."
    )
    tokenizer: Literal["auto", "fastokens", "tokenizers"] = Field(
        "auto", description="Reads texts. `auto`: fastokens where it makes the same ids of a fixed set of texts."
    )
    max_model_tokens: Annotated[int, Field(ge=0)] = Field(
        0, description="Longest prompt in tokens; 0: what the model's configuration says."
    )
    max_batch_tokens: Annotated[int, Field(ge=0)] = Field(
        0, description="Token budget of a batch; 0: from the device (CPU 2,048, CUDA from free memory)."
    )
    target_batch_seconds: Annotated[float, Field(ge=0, le=60)] = Field(
        0.04,
        description="How long a batch may take on the engine while small jobs are about; 0: as long as a full one.",
    )
    torch_threads: Annotated[int, Field(ge=0, le=1_024)] = Field(
        0, description="CPU threads of the engine; 0: torch's."
    )

    # the worker
    worker_threads: Annotated[int, Field(ge=1, le=256)] = Field(16, description="Celery threads of a worker.")
    bulk_window: Annotated[int, Field(ge=1, le=255)] = Field(
        8, description="Bulk chunks hinted to or leased by one worker at a time; the other threads serve small jobs."
    )
    lease_seconds: Seconds = Field(30, description="How long a claim lasts without renewal.")
    renew_seconds: Seconds = Field(10, description="How often a worker renews its leases.")
    max_attempts: Annotated[int, Field(ge=1, le=10_000)] = Field(
        100, description="Claims of one chunk before its items fail with `attempts_exhausted`."
    )
    engine_start_timeout_seconds: Seconds = Field(600, description="How long an engine may take to become ready.")
    engine_hang_seconds: Seconds = Field(
        120, description="No progress for this long: the watchdog restarts the engine."
    )
    stop_seconds: Seconds = Field(10, description="A warm stop takes at most this long.")
    heartbeat_seconds: Beat = Field(5, description="How often a worker says that it lives.")

    # the scheduler
    window_seconds: Seconds = Field(10, description="How long the bulk chunks hinted to one worker last it.")
    hint_ttl_seconds: Seconds = Field(60, description="A hint that led to no claim for this long counts as lost.")
    busy_poll_seconds: Beat = Field(0.05, description="The scheduler's beat while bulk chunks wait.")
    idle_poll_seconds: Beat = Field(5, description="The scheduler's beat while nothing waits (NOTIFY wakes it).")
    sweep_seconds: Beat = Field(5, description="How often expired leases, deadlines and deliveries are swept.")
    receiving_timeout_seconds: Seconds = Field(300, description="A `receiving` job untouched for this long fails.")
    small_lane_per_client: Count = Field(64, description="Small chunks of a client hinted at submit at a time.")
    retention_days: Annotated[int, Field(ge=1, le=3_650)] = Field(30, description="How long ended jobs are kept.")

    # the front end
    api_host: str = Field("127.0.0.1", description="Address that the front end listens on.")
    api_port: Port = Field(8000, description="Port that the front end listens on.")
    max_body_bytes: Count = Field(64 << 20, description="Largest JSON body.")
    max_upload_bytes: Count = Field(64 << 30, description="Largest NDJSON body, decompressed.")
    max_uploads: Annotated[int, Field(ge=1, le=1_000)] = Field(
        8, description="NDJSON bodies and files that one front end reads at a time; more are told to come again."
    )
    max_file_bytes: Count = Field(200 << 20, description="Largest file of a batch's requests.")
    max_batch_lines: Annotated[int, Field(ge=1, le=1_000_000)] = Field(50_000, description="Most requests in a batch.")
    max_items: Count = Field(10_000_000, description="Most items in one job.")
    max_item_bytes: Count = Field(1 << 20, description="Largest single item, and the largest query.")
    default_expires_seconds: Annotated[int, Field(ge=60, le=31_536_000)] = Field(
        7 * 86_400, description="When a job expires that names no time of its own."
    )
    answer_timeout_seconds: Seconds = Field(
        60, description="How long a route of another system's dialect waits for its scores before it cancels the job."
    )
    requests_per_minute: Limit = Field(0, description="Requests that a client may make a minute; 0: no limit.")

    # what may be queued, by the front end's measure
    max_queued_tokens_per_client: Limit = Field(
        10_000_000_000, description="Estimated tokens a client may have queued."
    )
    max_queued_tokens_total: Limit = Field(40_000_000_000, description="Estimated tokens all clients may have queued.")
    max_queued_bytes_per_client: Limit = Field(64 << 30, description="Bytes of items that a client may have queued.")
    max_queued_bytes_total: Limit = Field(256 << 30, description="Bytes of items that all clients may have queued.")
    max_redis_share: Annotated[float, Field(gt=0, le=1)] = Field(
        0.9, description="Above this share of Redis' maxmemory, where it has one, no job is taken."
    )
    max_database_bytes: Limit = Field(0, description="At this size of the database no job is taken; 0: no limit.")
    min_free_disk_bytes: Limit = Field(
        1 << 30, description="With less free on the disk of `ledger_dir`, no job is taken; 0: no limit."
    )
    ledger_dir: str = Field("", description="A local folder on the disk that holds Postgres' files; empty: elsewhere.")

    # webhooks
    webhook_timeout_seconds: Seconds = Field(15, description="How long a receiver may take to answer.")
    webhook_secret: str = Field(
        "", description="`whsec_…`: signs the webhooks; empty: one is made and kept in Postgres."
    )
    webhook_allow_cidrs: Cidrs = Field("", description="Networks that webhooks may lead to besides the Internet.")
    webhook_allow_ports: Ports = Field("443", description="Ports, and ranges of ports, that webhooks may lead to.")
    webhook_allow_http: bool = Field(default=False, description="Whether webhooks may be sent in the clear.")
    deliverer_threads: Annotated[int, Field(ge=1, le=256)] = Field(32, description="Webhooks sent at a time.")

    # the embedded stack
    data_dir: Path = Field(Path(".rankmill"), description="Where `rankmill up` keeps Postgres' and Valkey's files.")

    # everything
    metrics_port: Port = Field(
        0, description="Port for the metrics of a scheduler, worker or deliverer; 0: they are not served."
    )
    metrics_host: str = Field("127.0.0.1", description="Address that the metrics are served on.")
    log_format: Literal["auto", "json", "console"] = Field("auto", description="`auto`: console on a terminal.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least level that is logged.")
    otlp_endpoint: str = Field("", description="Where spans are sent, as http://host:4318; empty: nowhere.")
