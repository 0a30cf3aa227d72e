"""Trials in real throw-away workers: what works, and every way in which one ends badly."""

import os
import sys

import numpy as np
import pytest
from tests.agent.agents import Keys, RawPeer, agent
from tests.agent.worker.test_sandbox import SOURCE

from potluck_agent.processors.trial import attempt
from potluck_agent.worker import launch, trial
from potluck_agent.worker.trial import HIDDEN, ROWS, WIDTH, WrongResult, check, rates
from potluck_wire.messages import Channel, Hello, ProcessorTried, TryProcessor
from potluck_wire.statement import read

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("torch")
MEMORY_BYTES = 256 << 20
CUDA = TryProcessor(provider="cuda", memory_bytes=MEMORY_BYTES)

# --- trials as they come --------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("backends", [("torch",), ("onnxruntime",), ()])
def test_a_trial_of_threads_gives_a_rate_for_each_count(backends):
    trial = TryProcessor(threads=(1, 2, 3), memory_bytes=MEMORY_BYTES, backends=backends)
    answer = attempt(trial)
    assert answer.reason == ""
    assert len(answer.flops_per_s) == 3
    assert all(1e6 < rate < 1e15 for rate in answer.flops_per_s)


def test_accelerators_are_listed_without_being_tried():
    assert attempt(TryProcessor()) == ProcessorTried(providers=trial.offered())


@pytest.mark.skipif("cuda" in trial.offered(), reason="CUDA is here")
def test_an_accelerator_that_is_not_there_says_so():
    answer = attempt(CUDA)
    assert answer == ProcessorTried(reason="onnxruntime does not load it")


# --- and when they end badly ----------------------------------------------------------------------

WORKER = """
import os, runpy, signal, struct, sys
sys.path.append({source!r})
import numpy as np
from potluck_agent.worker import process, trial
honest = trial.onnx_with_threads
n_made = 0
def fake(threads, provider=""):
    global n_made
    if not provider:
        return honest(threads)
    n_made += 1
    {does}
    return honest(threads)
trial.onnx_with_threads = fake
{instead}
os._exit(process.main(sys.argv[1:]))
"""
ANSWERS = "from potluck_wire.messages import *; from potluck_wire.stream import pack; "
SAYS = (
    ANSWERS + "import socket; end = socket.socket(fileno=int(sys.argv[1])); end.sendall({}); "
    "end.recv(1 << 16); sys.exit(0)"
)
NAN = "pack(ProcessorTried(flops_per_s=(float('nan'),)))"
# what the driver does, what the process does instead of a trial, and what is said of it
BAD = {
    "works": ("pass", "", ""),
    "crashes": ("os.kill(os.getpid(), signal.SIGSEGV)", "", "its trial crashed (SIGSEGV)"),
    "aborts": ("os.abort()", "", "its trial crashed (SIGABRT)"),
    "exits": ("sys.exit(3)", "", "its trial crashed (exit code 3)"),
    "is killed": ("os.kill(os.getpid(), signal.SIGKILL)", "", "its trial was killed from outside"),
    "fails": ("raise RuntimeError('CUDA driver\\nis too old')", "", "CUDA driver"),
    "fails without a word": ("raise MemoryError", "", "MemoryError"),
    "works only outside its bounds": (
        "os.mkdir(sys.argv[0] + '.folder') if n_made == 2 else None",
        "",
        "Operation not permitted",
    ),
    "answers wrongly": ("return lambda: 1.1 * honest(threads)()", "", "its answers differ"),
    "answers nothing": ("return lambda: np.full((64, 512), np.nan)", "", "its answers differ"),
    "answers half": ("return lambda: honest(threads)()[:1]", "", "it answers with [1, 512]"),
    "hangs": ("signal.pause()", "", "its trial did not end within"),
    "ends at once": ("", "sys.exit(0)", "its trial crashed (exit code 0)"),
    "says nonsense": ("", SAYS.format("bytes(range(256))"), "its trial broke the protocol"),
    "says too much": ("", SAYS.format("struct.pack('>I', 2**31)"), "its trial broke the protocol"),
    "says another thing": ("", SAYS.format("pack(WorkerReady(), [b'{}'])"), "what nobody asked"),
    "has no rate": ("", SAYS.format("pack(ProcessorTried())"), "what nobody asked"),
    "has a rate that is none": ("", SAYS.format(NAN), "its trial"),
    "has a rate beyond any processor's": (
        "",
        SAYS.format("pack(ProcessorTried(flops_per_s=(2e15,)))"),
        "what nobody asked",
    ),
    "knows more": (
        "",
        SAYS.format("pack(ProcessorTried(flops_per_s=(1e9,), providers=('pigeon',)))"),
        "what nobody asked",
    ),
}


def taken_over(tmp_path, monkeypatch, does, instead=""):
    """Trials are what this makes of them."""
    program = tmp_path / "worker.py"
    program.write_text(WORKER.format(source=SOURCE, does=does or "pass", instead=instead))
    monkeypatch.setattr(launch, "PROGRAM", (str(program),))


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("way", BAD)
def test_a_trial_that_ends_badly_is_an_answer(tmp_path, monkeypatch, way):
    does, instead, reason = BAD[way]
    taken_over(tmp_path, monkeypatch, does, instead)
    timeout_s = 2.0 if way == "hangs" else 60.0
    answer = attempt(CUDA, timeout_s)
    assert answer.reason.startswith(reason) or reason in answer.reason
    assert answer.reason.isprintable()
    assert bool(answer.flops_per_s) == (way == "works")


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_trial_that_cannot_be_started_is_an_answer(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert "could not be started" in attempt(CUDA).reason


# --- what is right, and how it is timed -----------------------------------------------------------


def answer_of():
    rng = np.random.default_rng(1)
    return rng.standard_normal((ROWS, WIDTH), dtype="float32")


def rounded(array, bits):
    """Products of numbers with so many binary digits err by half of the last one."""
    error = np.random.default_rng(2).uniform(-1, 1, array.shape) * 2.0 ** -(bits + 1)
    return array * (1 + error)


@pytest.mark.parametrize("bits", [23, 10])
def test_answers_in_single_and_half_precision_are_right(bits):
    check(rounded(answer_of(), bits), answer_of())


@pytest.mark.parametrize(
    "wrong",
    [
        lambda right: right * 1.01,
        lambda right: -right,
        lambda right: np.zeros_like(right),
        lambda right: right[::-1],
        lambda right: np.where(right == right.max(), np.inf, right),
        lambda right: np.where(right == right.min(), np.nan, right),
        lambda right: right.T,
    ],
)
def test_other_answers_are_wrong(wrong):
    with pytest.raises(WrongResult):
        check(wrong(answer_of()), answer_of())


def test_the_model_is_the_same_in_both_libraries():
    check(trial.torch_with_threads(1)().numpy(), trial.onnx_with_threads(1)())


class Clock:
    """Time that only the model takes: so many seconds with each count of threads."""

    def __init__(self, seconds):
        self.now_s = 0.0
        self.seconds = seconds
        self.ran = []

    def perf_counter(self):
        return self.now_s

    monotonic = perf_counter

    def with_threads(self, count):
        def work():
            self.ran.append(count)
            self.now_s += self.seconds[count]

        return work


@pytest.mark.parametrize(("scale", "most_s"), [(1.0, 1.0), (100.0, 8.0)])
def test_a_trial_keeps_to_its_budget_and_runs_each_count(monkeypatch, scale, most_s):
    clock = Clock({1: 0.010 * scale, 4: 0.004 * scale, 8: 0.005 * scale})
    monkeypatch.setattr(trial, "time", clock)
    found = rates(clock.with_threads, (1, 4, 8), 0.8)
    expected = [trial.FLOP / seconds for seconds in clock.seconds.values()]
    assert found == pytest.approx(expected)
    assert clock.now_s <= most_s
    assert set(clock.ran) == {1, 4, 8}


def test_the_quickest_run_counts():
    """Another program takes the processor in most of them."""
    seconds = iter([9.0, 0.3, 0.1, 0.3] * 50)
    clock = Clock({})

    def work():
        clock.now_s += next(seconds)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial, "time", clock)
        assert rates(lambda _: work, (1,), 2.0) == pytest.approx((trial.FLOP / 0.1,))


def test_flop_are_those_of_two_products():
    assert trial.FLOP == 2 * 2 * ROWS * WIDTH * HIDDEN


# --- an agent that tries --------------------------------------------------------------------------


@pytest.mark.long
def test_an_agent_states_what_it_has_found(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    ada = Keys()
    trust = ("--trust", f"{ada.public}:ada")
    with (
        agent(tmp_path, *trust, tries=True, backends="") as jetson,
        RawPeer(jetson.port, jetson.key, ada) as peer,
    ):
        peer.say(Hello(major=1, name="ada"))
        _, (document,) = peer.receive(Channel.CONTROL)
    statement = read(document)
    cpu, *_ = statement["processors"]
    assert (cpu["kind"], cpu["threads"]) == ("cpu", statement["threads"])
    if len(os.sched_getaffinity(0)) > 1:
        assert cpu["reason"].startswith("fastest of 1, ")
        assert cpu["flops_per_s"] > 1e6
