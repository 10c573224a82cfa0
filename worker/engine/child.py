"""The engine process: loads one model, then answers batches until its pipe closes.

Started by ``worker.engine.process`` as ``python -m worker.engine.child REQUESTS REPLIES`` (two file descriptors), never
forked: it inherits no thread, no lock and no CUDA context. It imports neither Celery nor the store.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import NamedTuple, NoReturn

import numpy as np

from worker.engine import frames, libraries
from worker.engine.compiled_code import keep_compiled_code
from worker.engine.frames import Buffer, Kind
from worker.engine.gpu import Gpu, folder_of
from worker.engine.options import EngineOptions
from worker.engine.protocol import Batch, Engine, EngineOutOfMemory, EngineRefused, Launch, Wait
from worker.engine.visible_gpus import Question

BEAT_SECONDS = 1.0


class Replies:
    """The way back to the worker, shared by the threads of this process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._beat_at = 0.0

    def send(self, kind: Kind, *payload: Buffer) -> None:
        """Send one frame. The worker's end closed: end, there is nobody to work for."""
        try:
            with self._lock:
                frames.send(self._descriptor, kind, *payload)
        except OSError:
            os._exit(0)

    def beat(self) -> None:
        """Say that work goes on, at most once a second: an engine calls this as often as it likes."""
        now = time.monotonic()
        if now - self._beat_at >= BEAT_SECONDS:
            self._beat_at = now
            self.send(Kind.BEAT)


def main(requests: int, replies_descriptor: int) -> None:
    """Load, say what was loaded, and answer batches one after another."""
    for signal_number in (signal.SIGINT, signal.SIGTERM):  # a signal to the whole group must not cost a running batch
        signal.signal(signal_number, signal.SIG_IGN)
    for descriptor in (requests, replies_descriptor):
        os.set_inheritable(descriptor, False)  # noqa: FBT003 - a grandchild that held them would hide our death
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # libraries that print must not spoil the worker's output
    replies = Replies(replies_descriptor)
    loaded: SimpleQueue[Engine] = SimpleQueue()  # one, once it is there
    prepared: SimpleQueue[Prepared] = SimpleQueue()
    options = frames.unpack_options(frames.receive(requests)[1])
    threading.Thread(target=_listen, args=(requests, loaded, prepared), name="listen", daemon=True).start()
    with _beating(replies):
        engine, gpu = _start(options, replies)
    loaded.put(engine)
    replies.send(Kind.READY, frames.pack_info(engine.info if gpu is None else gpu.told(engine.info)))
    answers = Answers(replies)
    while True:
        next_one = prepared.get()
        if next_one.is_alone:
            answers.drain()
        answers.put(_launched(next_one.launch))
        if next_one.is_alone:
            answers.drain()


class Answers:
    """Waits for launched batches in a thread of its own, in their order, and sends their scores."""

    def __init__(self, replies: Replies) -> None:
        self._launched: SimpleQueue[Wait] = SimpleQueue()
        self._is_sent = threading.Semaphore(0)
        self._num_unsent = 0
        threading.Thread(target=self._run, args=(replies,), name="answer", daemon=True).start()

    def put(self, wait: Wait) -> None:
        """Have this one answered after those before it."""
        self._num_unsent += 1
        self._launched.put(wait)

    def drain(self) -> None:
        """Wait until all are answered."""
        while self._num_unsent:
            self._is_sent.acquire()
            self._num_unsent -= 1

    def _run(self, replies: Replies) -> None:
        while True:
            _answer(self._launched.get(), replies)
            self._is_sent.release()


class Prepared(NamedTuple):
    """A batch on its way. ``is_alone``: no other may be launched until its scores are there, nor it before others' are."""

    launch: Launch
    is_alone: bool


def load(options: EngineOptions, beat: Callable[[], None]) -> Engine:
    """The engine that the options ask for. Only a real model imports torch."""
    if options.model == "fake":
        from worker.engine.fake import FakeEngine, FakeTroubles  # noqa: PLC0415 - see above

        return FakeEngine(options, FakeTroubles.from_environment())
    keep_compiled_code()
    from worker.engine.device import device_of  # noqa: PLC0415 - see above
    from worker.engine.packed import load_packed  # noqa: PLC0415 - see above
    from worker.engine.padded import PaddedEngine  # noqa: PLC0415 - see above

    if options.engine == "padded" or (options.engine == "auto" and device_of(options).type == "cpu"):
        return PaddedEngine(options, beat)
    packed = load_packed(options, beat)
    if not isinstance(packed, str):
        return packed
    if options.engine == "packed":
        raise EngineRefused(f"RANKMILL_ENGINE is packed, but {options.model} can't be: {packed}")
    padded = PaddedEngine(options, beat)
    padded.info = replace(padded.info, choices={**padded.info.choices, "not_packed": packed})
    return padded


def _listen(requests: int, loaded: SimpleQueue[Engine], prepared: SimpleQueue[Prepared]) -> None:
    # A thread of its own, so that the worker's death shows at once, while the engine loads too, and the next batch is ready
    # when it may be launched.
    try:
        payload = frames.receive(requests)[1]
        engine = loaded.get()
        while True:
            prepared.put(_prepared(engine, frames.unpack_batch(payload)))
            payload = frames.receive(requests)[1]
    except (EOFError, OSError):
        os._exit(0)


def _prepared(engine: Engine, batch: Batch) -> Prepared:
    try:
        launch = engine.prepare(batch)
    except Exception as error:  # noqa: BLE001 - raised again below, where every trouble of a batch is named
        launch = partial(_raise, error)  # it waits in turn, too
    return Prepared(launch, is_alone=batch.is_suspect or not engine.info.launches_ahead)


def _launched(launch: Launch) -> Wait:
    # The next batch is launched before the scores of this one are waited for: a device that waits for its host idles.
    try:
        return launch()
    except Exception as error:  # noqa: BLE001 - as above
        return partial(_raise, error)


def _raise(error: Exception) -> NoReturn:
    raise error


@contextmanager
def _beating(replies: Replies) -> Iterator[None]:
    is_over = threading.Event()

    def beat_until_over() -> None:
        while not is_over.wait(BEAT_SECONDS):
            replies.beat()

    thread = threading.Thread(target=beat_until_over, name="beat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _take_gpu(options: EngineOptions) -> Gpu | None:
    """Take a GPU where the options may want one. Torch is imported while the driver is asked which there are."""
    if options.device == "cpu":
        return None
    question = Question()
    libraries.import_torch()
    gpu = Gpu.take(options.device, question.answer(), folder_of(options.gpu_dir))
    if gpu is not None:
        gpu.show_alone()
    return gpu


def _start(options: EngineOptions, replies: Replies) -> tuple[Engine, Gpu | None]:
    gpu = None
    try:
        if options.model != "fake":
            gpu = _take_gpu(options)
            libraries.import_all()
            gc.freeze()  # nor look through what they made again, whenever this process looks for garbage
        engine = load(replace(options, device=options.device.partition(":")[0]), replies.beat)
        # A device that can't score one token must not come to blame a client's items.
        token, length, labels, shared = (np.array(values, np.int32) for values in ([0], [1], [[0, 1]], [0]))
        engine.score(Batch(token, length, labels, shared))
    except EngineRefused as refusal:
        replies.send(Kind.REFUSED, str(refusal).encode())
    except (EngineOutOfMemory, MemoryError) as error:  # another process may still be giving its memory back
        replies.send(Kind.DYING, f"out of memory at the start: {error}".encode())
    except Exception as error:  # noqa: BLE001 - whatever a library raises for a model that it can't load
        traceback.print_exc()
        replies.send(Kind.REFUSED, f"{options.model} does not load: {type(error).__name__}: {error}".encode())
    else:
        gc.collect()
        gc.freeze()  # what compiling left is looked through now, and never while batches wait
        return engine, gpu
    os._exit(1)


def _answer(wait: Wait, replies: Replies) -> None:
    try:
        replies.send(Kind.SCORES, *frames.pack_scores(wait()))
    except EngineOutOfMemory as error:
        replies.send(Kind.OUT_OF_MEMORY, str(error).encode())
    except Exception as error:  # noqa: BLE001 - after an unknown fault, a new process is the only safe state
        traceback.print_exception(error)
        replies.send(Kind.DYING, f"{type(error).__name__}: {error}".encode())
        os._exit(1)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
