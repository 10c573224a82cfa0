"""When open jobs may end, for their answers. What all clients wait for is summed at most once in some seconds a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from threading import Lock

from api.kept import Kept
from core.forecasts import Forecast, Lane
from core.jobs import Job
from store import rates, standings
from store.database import Database

KEPT_SECONDS = 5.0


class Forecasts:
    """Thread safe; call it while you hold no connection. Nothing is measured while nobody asks, nor for ended jobs."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = Lock()
        self._by_model: dict[str, Kept[Forecast]] = {}

    def of(self, job: Job) -> Job:
        """The job with its ``eta_seconds``."""
        return self.of_all([job])[0]

    def of_all(self, jobs: Sequence[Job]) -> list[Job]:
        """The same for jobs of one client, in one statement for all of them."""
        waiting = [job for job in jobs if job.finished_at is None]
        forecasts = {model: self._of_model(model) for model in {job.parameters.model for job in waiting}}
        models = {model for model, forecast in forecasts.items() if forecast.tokens_per_second}
        if not models:
            return list(jobs)
        with self._database.begin() as connection:
            last_id = max(job.id for job in waiting)
            places = standings.of_client(connection, jobs[0].client_id, models, last_id=last_id)
        return [
            replace(
                job, eta_seconds=forecasts[job.parameters.model].eta_seconds(place.standing, is_small=place.is_small)
            )
            if (place := places.get(job.id)) is not None
            else job
            for job in jobs
        ]

    def _of_model(self, model: str) -> Forecast:
        with self._lock:
            kept = self._by_model.setdefault(model, Kept(partial(self._measure, model), KEPT_SECONDS))
        return kept.get()

    def _measure(self, model: str) -> Forecast:
        with self._database.begin() as connection:
            rate = rates.tokens_per_second(connection, model)
            bulk, small = standings.of_model(connection, model) if rate else ([], [])
        return Forecast(Lane(bulk), Lane(small), rate)
