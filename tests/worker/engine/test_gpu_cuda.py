"""Engine processes on real GPUs: the driver's answer, and one GPU each where there are several."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import pytest
import torch
from tiny_models import CONFIGS, save

from worker.engine.options import EngineOptions
from worker.engine.process import EngineProcess
from worker.engine.protocol import Batch
from worker.engine.visible_gpus import Question

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

BATCH = Batch(np.arange(9, dtype=np.int32), *(np.array(values, np.int32) for values in ([9], [[1, 2]], [0])))


def test_the_driver_tells_the_gpus_that_torch_sees_in_its_order():
    seen = [str(torch.cuda.get_device_properties(place).uuid) for place in range(torch.cuda.device_count())]
    assert Question().answer() == seen


def test_engines_take_a_gpu_each_while_there_are_any_and_score_alike(tmp_path):
    save(tmp_path / "model", CONFIGS["qwen3"]())
    options = EngineOptions(
        model=str(tmp_path / "model"), device="cuda", engine="padded", dtype="float32", gpu_dir=str(tmp_path / "gpus")
    )
    ids = Question().answer()
    with ExitStack() as running:
        infos, scores = [], []
        for _ in range(2):
            engine = EngineProcess(options, start_timeout_seconds=300, hang_seconds=300)
            engine.start()
            running.callback(engine.stop)
            infos.append(engine.wait_ready(300))
            scores.append(engine.score(BATCH).label_logprobs_BL)
        places = [0, min(1, len(ids) - 1)]
        assert [info.device for info in infos] == [f"cuda:{place}" for place in places]
        assert [info.choices["gpu"] for info in infos] == [ids[place] for place in places]
        assert [info.choices.get("gpu_shared_with") for info in infos] == [None, None if len(ids) > 1 else "1"]
        assert np.array_equal(*scores)
