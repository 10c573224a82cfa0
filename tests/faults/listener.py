"""A receiver of webhooks that remembers what it was told and can be slow or wrong, and how to spare tests the waiting."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Receiver:
    """Remembers what it was told; ``status`` is its answer, which ``may_answer`` holds back."""

    def __init__(self):
        self.told, self.status, self.may_answer = [], 200, threading.Event()
        self.may_answer.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.told.append((self.headers["webhook-id"], json.loads(body)["data"]["id"]))
                receiver.may_answer.wait(10)
                self.send_response(receiver.status)
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"

    @property
    def ids(self):
        return {webhook_id for webhook_id, _ in self.told}


@contextmanager
def receiving():
    receiver = Receiver()
    thread = threading.Thread(target=receiver.server.serve_forever)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.may_answer.set()
        receiver.server.shutdown()
        thread.join()
        receiver.server.server_close()


def hurry(stack):
    """Let leases, hints and pauses of deliveries be over."""
    stack.sql("UPDATE deliveries SET lease_until = now() - interval '1 s' WHERE state = 'leased'")
    stack.sql("UPDATE deliveries SET next_attempt_at = now(), hinted_at = NULL WHERE state IN ('pending', 'leased')")
