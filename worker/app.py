"""A worker process: registers, starts its engine, publishes the model, and only then takes chunks.

Nothing is claimed before the engine was ready once. Postgres and Redis may be away at any time: the process waits.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any
from uuid import UUID

import redis
import structlog
from celery.exceptions import Reject

from core.chunks import ChunkKey
from core.errors import NotReady
from core.queues import SCORE_CHUNK, bulk_queue, small_queue
from core.results import Evidence
from core.settings import Settings
from store import metrics, metrics_server, model_cards, notices, rates, schema_version, workers
from store.database import Database
from store.hints import celery_app
from worker import engine_metrics
from worker.batcher import Batcher
from worker.consumer import Consumer
from worker.engine.options import EngineOptions
from worker.engine.process import EngineProcess
from worker.engine.protocol import EngineInfo, EngineRefused
from worker.heartbeat import Heartbeat, Pulse
from worker.ledger import Ledger
from worker.meter import Meter
from worker.owner import new_owner
from worker.patience import keep_trying
from worker.score_chunk import Scorer, Stopping, Unable, run_chunk
from worker.self_test import examine
from worker.serving import Served, entry_of, serve
from worker.warm_stop import WarmStop

REFUSED_STATUS = 3  # the exit status when the model can't be served: starting again would not help
BROKEN_STATUS = 1  # starting again may help
REDIS_TIMEOUT_SECONDS = 5.0  # for a notice: whoever waits for it polls too
SHARE_FOR_THE_BATCH = 0.5  # of a stop's time, until the running batch is given up; the rest is for giving leases back
LOOK_SECONDS = 0.5  # how often a boot looks whether it is to stop

log = structlog.get_logger()


def run(settings: Settings) -> None:
    """Serve one model until the process is told to stop. Exits with status 3 where the model can't be served."""
    stop = WarmStop(settings.stop_seconds)
    stop.install()
    metrics_server.start(settings, *metrics.WORKER)
    process = WorkerProcess(settings, stop)
    try:
        served = process.boot()
        if served is not None:
            process.serve(served)
    except (EngineRefused, Unable) as error:
        is_refused = isinstance(error, EngineRefused) or isinstance(error.__cause__, EngineRefused)
        event = "model refused" if is_refused else "worker broken"
        log.error(event, model=settings.model, reason=str(error))  # noqa: TRY400 - the reason says it all
        if is_refused:
            process.say_refused(str(error))
        raise SystemExit(REFUSED_STATUS if is_refused else BROKEN_STATUS) from error
    finally:
        process.close()


class WorkerProcess:
    """The parts of a worker and the order in which they start and stop."""

    def __init__(self, settings: Settings, stop: WarmStop) -> None:
        self._entry = entry_of(settings)
        options = EngineOptions.from_settings(settings, self._entry)
        self._settings, self._stop = settings, stop
        self._is_refused = False
        self._info = workers.WorkerInfo(
            new_owner(), socket.gethostname(), os.getpid(), options.model_name, settings.worker_threads
        )
        self._database = Database(settings.database_url, pool_size=settings.database_pool_size, name="rankmill-worker")
        self._pulse_database = Database(settings.database_url, pool_size=1, name="rankmill-heartbeat")
        self._redis = redis.Redis.from_url(
            settings.redis_url, socket_timeout=REDIS_TIMEOUT_SECONDS, socket_connect_timeout=REDIS_TIMEOUT_SECONDS
        )
        self._engine = EngineProcess(
            options,
            start_timeout_seconds=settings.engine_start_timeout_seconds,
            hang_seconds=settings.engine_hang_seconds,
            on_death=engine_metrics.count_death,
            on_busy=engine_metrics.count_busy,
        )
        self._batcher: Batcher | None = None  # made once the engine is ready
        self._ledger = Ledger(
            self._database,
            self._info.owner,
            settings.lease_seconds,
            self._announce,
            stopping=stop.requested,
            meter=Meter(on_first=self._report),
        )
        self._heartbeat = Heartbeat(
            self._pulse_database,
            self._ledger.leases,
            self._info,
            Pulse(
                lease_seconds=settings.lease_seconds,
                renew_seconds=settings.renew_seconds,
                heartbeat_seconds=settings.heartbeat_seconds,
                silence_seconds=settings.engine_hang_seconds + settings.lease_seconds,  # the watchdog acts first
            ),
            progress=lambda: self._engine.progress,
            details=self._details,
        )
        metrics.LEASES.set_function(lambda: len(self._ledger.leases.held()))
        metrics.ENGINE_READY.set_function(lambda: self._engine.is_ready)
        self._fault: Unable | None = None

    def boot(self) -> Served | None:
        """Everything before the first claim. None where the process is told to stop first."""
        try:
            keep_trying(self._register, what="register the worker", stopping=self._stop.requested)
            self._heartbeat.start()
            self._engine.start()
            engine = self._wait_for_engine()
            if engine is None:
                return None
            served = self._examine(engine)
            keep_trying(lambda: self._publish(served), what="publish the model", stopping=self._stop.requested)
        except NotReady:
            return None  # keep_trying gives up for one reason only
        return served

    def serve(self, served: Served) -> None:
        """Take chunks until the process is told to stop, or can score nothing any more: then raises Unable."""
        batcher = self._batcher = Batcher(
            self._engine,
            target_seconds=self._settings.target_batch_seconds,
            on_batch=engine_metrics.count_batch,
            on_halved=engine_metrics.count_halving,
        )
        consumer = self._consumer(served, batcher)
        self._stop.on_request(consumer.end)
        self._stop.on_request(lambda: self._heartbeat.say("stopping"))
        self._stop.on_request(lambda: batcher.stop(self._settings.stop_seconds * SHARE_FOR_THE_BATCH))
        self._stop.on_request(self._engine.stop)  # a thread that still waits for it gives its chunk back
        if not self._stop.requested.is_set():
            log.info("worker ready", owner=self._info.owner, model=served.card.name, threads=self._info.threads)
            consumer.run()
        consumer.empty(bulk_queue(self._info.owner))
        if self._fault is not None:
            raise self._fault

    def say_refused(self, reason: str) -> None:
        """Leave the reason where operators look: the worker's row, which outlives the process."""
        self._heartbeat.stop()
        self._is_refused = True
        with suppress(NotReady), self._database.begin() as connection:
            workers.refuse(connection, self._info.owner, reason=reason)

    def close(self) -> None:
        """Give back whatever is still held, and take the worker's row out."""
        self._heartbeat.stop()
        self._engine.stop()
        self._ledger.give_back(*self._ledger.leases.held())
        if not self._is_refused:
            with suppress(NotReady), self._database.begin("worker.remove") as connection:
                workers.remove(connection, self._info.owner)
        self._database.dispose()
        self._pulse_database.dispose()
        self._redis.close()
        log.info("worker stopped", owner=self._info.owner)

    def _consumer(self, served: Served, batcher: Batcher) -> Consumer:
        settings, card = self._settings, served.card
        scorer = Scorer(
            batcher=batcher,
            tokenizer=served.tokenizer,
            evidence=Evidence(card.revision, card.dtype, served.engine_version),
            max_tokens=card.max_tokens,
            max_attempts=settings.max_attempts,
        )
        app = celery_app(settings.redis_url, settings.redis_prefix)

        @app.task(name=SCORE_CHUNK, acks_late=True)  # type: ignore[untyped-decorator]
        def score_chunk(job_id: str, chunk_no: int) -> None:
            try:
                run_chunk(ChunkKey(UUID(job_id), chunk_no), self._ledger, scorer)
            except Stopping:
                raise Reject(requeue=True) from None  # another worker of the model may read the same queue
            except Unable as unable:
                self._fault = unable
                self._stop.request()
                raise

        queues = [bulk_queue(self._info.owner), small_queue(card.name)]
        return Consumer(app, queues, name=f"worker@{self._info.owner}", num_threads=self._info.threads)

    def _register(self) -> None:
        with self._database.begin("worker.register") as connection:
            schema_version.require(connection)
            workers.register(connection, self._info)

    def _wait_for_engine(self) -> EngineInfo | None:
        while not self._stop.requested.is_set():
            with suppress(NotReady):
                return self._engine.wait_ready(LOOK_SECONDS)
        return None

    def _examine(self, engine: EngineInfo) -> Served:
        """The model with its finished card. Raises EngineRefused where it would score wrongly."""
        served = serve(engine, self._entry, self._settings)
        card = examine(served, self._entry, self._engine.score)
        log.info("self-test passed", model=card.name, is_verified=card.is_verified)
        return replace(served, card=card)

    def _publish(self, served: Served) -> None:
        with self._database.begin("worker.model") as connection:
            model_cards.publish(connection, served.card, served.tokenizer_json)
        self._heartbeat.say("ready")

    def _announce(self, job_id: UUID) -> None:
        notices.announce(self._redis, job_id, prefix=self._settings.redis_prefix)

    def _report(self) -> None:
        """The scheduler sizes our window by the rate that has become known."""
        self._heartbeat.wake()

    def _details(self) -> dict[str, Any]:
        """What ``/v1/workers`` shows of this process beside its row."""
        return {
            **({} if self._batcher is None else asdict(self._batcher.stats)),
            **rates.to_details(self._ledger.meter.rate()),
            **self._engine_facts(),
            "is_engine_ready": self._engine.is_ready,
            "clock": round(time.time(), 3),  # by which a check-up sees that it is off
            "num_engine_restarts": self._engine.num_deaths,
        }

    def _engine_facts(self) -> dict[str, str | int]:
        """Of the engine that runs: one that was started again may have another GPU than the one before."""
        with suppress(NotReady, EngineRefused):
            engine = self._engine.info
            return {"device": engine.device, "max_batch_tokens": engine.max_batch_tokens}
        return {}
