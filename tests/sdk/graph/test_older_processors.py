"""Equal bits are equal bits on older processors, too, whose kernels for the same operators are
others.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROCESSORS = {
    "SSE4.1": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"},
    "AVX2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
}
COMPARING = {
    "a graph": (
        "test_equality",
        "partition/test_branched_equality",
        "test_model",
        "test_odd_models",
        "loss/test_batch_reductions",
    ),
    "rows of a graph": ("loss/test_means", "test_efficientnet"),
}
ELSEWHERE = {
    "one device": ("tests/agent/worker/test_interpreter.py", "tests/agent/worker/test_process.py"),
    "shared by devices": (
        "tests/sdk/offload/rows/test_receptive_fields.py",
        "tests/sdk/offload/plan/test_split.py",
        "tests/sdk/offload/plan/test_lowering.py",
    ),
    "answered by devices": (
        "tests/sdk/run/test_inference.py",
        "tests/sdk/run/test_models_end_to_end.py",
    ),
    "trained on devices": (
        "tests/sdk/run/test_training.py",
        "tests/sdk/run/test_branching_networks.py",
    ),
}
FILES = {
    what: [f"tests/sdk/graph/{name}.py" for name in names] for what, names in COMPARING.items()
} | ELSEWHERE


@pytest.mark.long
@pytest.mark.parametrize("files", FILES.values(), ids=FILES)
@pytest.mark.parametrize("kernels", PROCESSORS.values(), ids=PROCESSORS)
def test_what_is_equal_is_so_with_the_kernels_of_older_processors(kernels, files):
    environment = {**os.environ, **kernels, "HYPOTHESIS_PROFILE": "default"}
    line = [sys.executable, "-m", "pytest", "-m", "not long", "--show-capture=no", *files]
    done = subprocess.run(
        line, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout[-8000:]


@pytest.mark.parametrize("path", [path for files in FILES.values() for path in files])
def test_every_file_that_compares_is_there(path):
    assert (ROOT / path).is_file()
