"""What an engine process imports, and when: in processes of their own, because imports last."""

from __future__ import annotations

import subprocess
import sys


def run(program):
    command = [sys.executable, "-P", "-W", "error", "-c", program]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


def test_garbage_is_looked_for_again_once_all_is_imported():
    program = """
import gc, sys
gc.callbacks.append(lambda phase, info: print("looked") if phase == "start" else None)
from worker.engine import libraries
gc.collect()
libraries.import_all()
del gc.callbacks[:]
print(gc.isenabled(), "worker.engine.packed" in sys.modules)
"""
    looked = run(program)
    assert looked[-2:] == ["True", "True"]
    assert len(looked) < 20, "hundreds of times without"


def test_compiled_code_is_kept_and_cuda_not_asked_until_the_gpu_is_chosen():
    program = """
import os, sys
os.environ.pop("TRITON_CACHE_DIR", None)
from worker.engine import libraries
libraries.import_torch()
import torch
print("rankmill" in os.environ["TRITON_CACHE_DIR"], torch.cuda.is_initialized(), "transformers" in sys.modules)
"""
    assert run(program) == ["True", "False", "False"]


def test_a_process_with_the_fake_model_imports_no_torch():
    program = """
import sys
from worker.engine import child
from worker.engine.options import EngineOptions
child.load(EngineOptions(), lambda: None)
print("torch" in sys.modules)
"""
    assert run(program) == ["False"]
