"""A receiver of webhooks on this machine, and the rules that let a deliverer send to it."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from core.callback_rules import CallbackRules
from core.settings import Settings

ALLOWED = {"webhook_allow_cidrs": "127.0.0.0/8", "webhook_allow_ports": "1-65535", "webhook_allow_http": True}
LOCAL = CallbackRules.of(Settings(**ALLOWED))  # receivers on this machine


class Receiver:
    """Answers with the statuses it is given, in turn, then with 200, and keeps what it got."""

    def __init__(self, *statuses, answer=b"", headers=None, delay_seconds=0.0):
        self.got, self.paths = [], []  # (headers, body)
        self.statuses, self.answer, self.headers, self.delay_seconds = (
            list(statuses),
            answer,
            headers or {},
            delay_seconds,
        )
        self.leave = threading.Event()

    @contextmanager
    def serving(self, address=("127.0.0.1", 0), *, tls=None):
        """Its URL. ``tls`` is the context of a server that speaks TLS."""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.got.append((dict(self.headers), body))
                receiver.paths.append(self.path)
                receiver.leave.wait(receiver.delay_seconds)
                self.send_response(receiver.statuses.pop(0) if receiver.statuses else 200)
                for name, value in receiver.headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(receiver.answer)))
                self.end_headers()
                self.wfile.write(receiver.answer)

            def log_message(self, *_):
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *_):
                pass  # the deliverer hung up on purpose

        with Server(address, Handler) as server:
            if tls is not None:
                server.socket = tls.wrap_socket(server.socket, server_side=True)
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            try:
                yield f"{'https' if tls else 'http'}://{server.server_address[0]}:{server.server_port}/hook"
            finally:
                self.leave.set()
                server.shutdown()
                thread.join()
