"""Serving the front end: one process, uvicorn on uvloop with httptools, and the limits of ``api.http_protocol``."""

from __future__ import annotations

import socket

import uvicorn
from fastapi import FastAPI

from api.answer_headers import AnswerHeaders
from api.app import create_app
from api.http_protocol import LimitedHttp
from core.settings import Settings

STOP_SECONDS = 8  # for answers that are being written; waiting clients are answered at once
KEEP_ALIVE_SECONDS = 75


class Server(uvicorn.Server):
    """A server that lets waiting requests answer before it stops."""

    def __init__(self, app: FastAPI, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, answer what is open, stop."""
        self.app.state.process.stop_waiting()
        await super().shutdown(sockets)


def server_for(settings: Settings) -> Server:
    """A server that is configured and does not run yet."""
    app = create_app(settings)
    config = uvicorn.Config(
        AnswerHeaders(app),
        host=settings.api_host,
        port=settings.api_port,
        loop="uvloop",
        http=LimitedHttp,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    return Server(app, config)


def serve(settings: Settings) -> None:
    """Run the front end until SIGTERM or Ctrl-C."""
    server_for(settings).run()
