"""What a process that looks after others waits for: a signal to stop, a child that died, or some time."""

from __future__ import annotations

import select
import signal
import socket
from types import FrameType
from typing import Self

STOPPING = (signal.SIGINT, signal.SIGTERM)


class Wakeups:
    """Use it as a context, in the main thread. Signals never interrupt what runs: they end the next ``wait``."""

    def __init__(self) -> None:
        self.should_stop = False

    def __enter__(self) -> Self:
        self._receiver, self._sender = socket.socketpair()
        for end in (self._receiver, self._sender):
            end.settimeout(0)
        self._old_fd = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        is_detached = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # started by nohup: it stays so
        stopping = STOPPING if is_detached else (*STOPPING, signal.SIGHUP)
        self._old = {number: signal.signal(number, self._stop) for number in stopping}
        self._old[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._old_fd)
        self._receiver.close()
        self._sender.close()

    def is_wanted(self) -> bool:
        """False once we were asked to stop."""
        return not self.should_stop

    def wait(self, timeout_seconds: float | None) -> None:
        """Until a signal has come (also since the last call), or the time is over."""
        if select.select([self._receiver], [], [], timeout_seconds)[0]:
            self._receiver.recv(4_096)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self.should_stop = True
