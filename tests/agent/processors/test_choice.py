"""What the worker computes on, by what trials say and by what the owner has said."""

import pytest

from potluck_agent.errors import AgentError
from potluck_agent.processors.choice import OwnerChoice, choose, fastest
from potluck_agent.processors.cores import Cores
from potluck_wire.documents import dump
from potluck_wire.messages import ProcessorTried
from potluck_wire.processors import PROVIDERS, words
from potluck_wire.statement import read

EIGHT = Cores(logical=8, allowed=8, physical=4, performance=4)
GOOD = {"name": "x", "memory_bytes": 1, "backends": {}, "dtypes": [], "operators": []}


class Machine:
    """Answers trials: a rate for each count of threads, and what each accelerator answers."""

    def __init__(self, threads=None, accelerators=None, reason=""):
        self.threads, self.accelerators = threads or {}, accelerators or {}
        self.reason, self.asked = reason, []

    def attempt(self, trial):
        self.asked.append(trial)
        if trial.provider:
            answer = self.accelerators[trial.provider]
            return (
                ProcessorTried(reason=answer)
                if isinstance(answer, str)
                else ProcessorTried(flops_per_s=(answer,))
            )
        if self.reason:
            return ProcessorTried(reason=self.reason)
        rates = tuple(self.threads[count] for count in trial.threads)
        return ProcessorTried(flops_per_s=rates, providers=tuple(self.accelerators))


def choice(
    machine, found=EIGHT, environment=(), backends=("torch", "onnxruntime"), named=(), **options
):
    chosen = choose(
        OwnerChoice(memory_bytes=2**30, backends=named, **options),
        found,
        "i5",
        backends=backends,
        environment=dict(environment),
        attempt=machine.attempt,
    )
    rows = [dict(row) for row in chosen.rows]
    assert read(dump({**GOOD, "processors": rows}))["processors"] == rows
    return chosen


def reasons_of(chosen):
    return list(words(chosen.rows, 8))


RATES = {1: 40e9, 4: 150e9, 8: 110e9}


def test_the_fastest_count_of_threads_is_taken_and_said():
    chosen = choice(Machine(RATES))
    assert (chosen.threads, chosen.provider) == (4, "")
    assert reasons_of(chosen) == ["i5 (cpu): 4 of 8 threads: fastest of 1, 4, 8: 150 GFLOP/s"]
    (row,) = chosen.rows
    assert (row["memory_bytes"], row["used"]) == (2**30, True)
    assert "bfloat16" in row["dtypes"]
    assert "bfloat16" not in choice(Machine(RATES), backends=("onnxruntime",)).rows[0]["dtypes"]


@pytest.mark.parametrize(
    ("rates", "count"),
    [
        ((50.0, 180.0, 184.0), 4),
        ((50.0, 180.0, 200.0), 8),
        ((50.0, 49.0, 20.0), 1),
        ((1.0, 1.04, 1.06), 4),
    ],
)
def test_of_counts_about_as_fast_the_smallest_is_taken(rates, count):
    assert fastest((1, 4, 8), rates) == count


NO_TRIAL = [
    ({"threads": 3, "device": "cpu"}, {}, 3, "3 of 8 threads: as told"),
    ({"is_emulated": True}, {}, 1, "1 of 8 threads: it plays another device"),
    ({"is_emulated": True, "threads": 2}, {}, 2, "2 of 8 threads: as told"),
    (
        {"device": "cpu"},
        {"OMP_NUM_THREADS": "1"},
        1,
        "1 of 8 threads: no more are allowed (OMP_NUM_THREADS=1)",
    ),
]


@pytest.mark.parametrize(("options", "environment", "count", "text"), NO_TRIAL)
def test_nothing_is_tried_where_nothing_is_to_be_chosen(options, environment, count, text):
    machine = Machine()
    chosen = choice(machine, environment=environment, **options)
    assert (chosen.threads, machine.asked) == (count, [])
    assert reasons_of(chosen) == [f"i5 (cpu): {text}"]


def test_the_environment_limits_what_is_tried():
    chosen = choice(Machine({1: 40e9, 2: 75e9}), environment={"OMP_NUM_THREADS": "2"})
    assert reasons_of(chosen) == [
        "i5 (cpu): 2 of 8 threads: fastest of 1, 2 (OMP_NUM_THREADS=2): 75 GFLOP/s"
    ]
    without = choice(Machine(RATES), environment={"OMP_NUM_THREADS": "64"})
    assert "OMP" not in reasons_of(without)[0]


def test_a_trial_that_fails_leaves_one_thread_and_its_reason():
    chosen = choice(Machine(reason="its trial crashed (SIGILL): illegal instruction"))
    assert chosen.threads == 1
    assert reasons_of(chosen) == [
        "i5 (cpu): 1 of 8 threads: a trial of 1, 4, 8 failed: its trial crashed (SIGILL): "
        "illegal instruction"
    ]


def test_without_a_backend_nothing_is_tried_and_nothing_stated():
    machine = Machine(RATES)
    assert choice(machine, backends=()).rows == ()
    assert machine.asked == []


def test_the_fastest_accelerator_that_works_is_taken_and_all_others_are_left_out_with_a_reason():
    machine = Machine(
        RATES,
        {
            "cuda": 9e12,
            "openvino": 3e11,
            "coreml": "its trial crashed (SIGSEGV): no last words",
            "xnnpack": "its answers differ from the CPU's by 3.1% of the largest",
        },
    )
    chosen = choice(machine)
    assert (chosen.provider, chosen.threads) == ("cuda", 4)
    assert reasons_of(chosen)[1:] == [
        "CUDAExecutionProvider (cuda): for ONNX models: 9,000 GFLOP/s",
        "OpenVINOExecutionProvider (openvino) is left out: no faster than cuda",
        "CoreMLExecutionProvider (coreml) is left out: its trial crashed (SIGSEGV): no last words",
        "XnnpackExecutionProvider (xnnpack) is left out: its answers differ from the CPU's by 3.1% "
        "of the largest",
    ]
    assert [row["used"] for row in chosen.rows] == [True, True, False, False, False]


def test_an_accelerator_that_is_no_faster_than_onnxruntime_on_the_cpu_is_left_out():
    machine = Machine(RATES, {"xnnpack": 149e9})
    chosen = choice(machine)
    assert chosen.provider == ""
    assert reasons_of(chosen)[1:] == [
        "XnnpackExecutionProvider (xnnpack) is left out: no faster than the CPU"
    ]
    # with as many threads as the worker has, and not torch's
    assert (machine.asked[-1].threads, machine.asked[-1].backends) == ((4,), ("onnxruntime",))


def test_a_slow_accelerator_is_taken_where_the_owner_says_so():
    machine = Machine(RATES, {"cuda": 9e12, "xnnpack": 1e9})
    chosen = choice(machine, device="xnnpack")
    assert chosen.provider == "xnnpack"
    assert reasons_of(chosen)[1] == (
        "CUDAExecutionProvider (cuda) is left out: xnnpack was asked for"
    )
    assert "cuda" not in {trial.provider for trial in machine.asked}


def test_an_accelerator_that_was_asked_for_and_fails_leaves_the_cpu():
    chosen = choice(Machine(RATES, {"cuda": "no driver"}), device="cuda")
    assert chosen.provider == ""
    assert reasons_of(chosen)[1] == "CUDAExecutionProvider (cuda) is left out: no driver"


@pytest.mark.parametrize(
    ("machine", "why"),
    [
        (Machine(RATES, {"xnnpack": 1e9}), "there are cpu, xnnpack"),
        (Machine(reason="its trial crashed"), "its trial crashed"),
    ],
)
def test_an_accelerator_that_is_not_there_is_refused_with_those_that_are(machine, why):
    with pytest.raises(AgentError, match=f"--device cuda: .*{why}"):
        choice(machine, device="cuda")


@pytest.mark.parametrize("present", [(), ("torch",)])
def test_a_library_that_was_named_and_is_not_there_is_refused(present):
    with pytest.raises(AgentError, match=r"onnxruntime, or what it needs.*\[onnx\]"):
        choice(Machine(RATES), backends=present, named=("onnxruntime",))


def test_no_accelerator_is_looked_for_without_onnxruntime():
    machine = Machine(RATES, {"cuda": 9e12})
    chosen = choice(machine, backends=("torch",), threads=2)
    assert (chosen.provider, machine.asked) == ("", [])


def test_every_accelerator_has_a_provider_of_onnxruntime():
    onnxruntime = pytest.importorskip("onnxruntime")
    assert set(PROVIDERS.values()) <= set(onnxruntime.get_all_providers())
