"""The routes of all pages."""

from __future__ import annotations

from fastapi import APIRouter

from api.pages import explorer, job_list, job_page, live, sign_in, static_files, try_it, webhooks, workers

PARTS = (job_list, job_page, explorer, live, workers, webhooks, try_it, sign_in, static_files)

routes = APIRouter(include_in_schema=False)
for part in PARTS:
    routes.include_router(part.routes)
