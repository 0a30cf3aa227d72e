"""Which accelerator torch computes on, by what trials say and by what the owner has said."""

import sys

import pytest
from tests.agent.processors.test_choice import EIGHT, GOOD, RATES, Machine
from tests.agent.processors.test_trial import SAYS, taken_over

from potluck_agent.errors import AgentError
from potluck_agent.processors.choice import OwnerChoice, choose
from potluck_agent.processors.torch_choice import kinds_here
from potluck_agent.processors.trial import attempt
from potluck_wire.documents import dump
from potluck_wire.messages import ProcessorTried, TryProcessor
from potluck_wire.processors import words
from potluck_wire.statement import read

GIB = 2**30
TYPES = ("float32", "float16", "int64")


class Accelerated(Machine):
    """Answers for torch's devices, too: a rate, or why one does not work."""

    def __init__(self, devices, silent=(), **others):
        super().__init__(RATES, **others)
        self.devices, self.silent = devices, dict(silent)

    def attempt(self, trial):
        if not trial.device:
            return super().attempt(trial)
        self.asked.append(trial)
        if trial.device in self.silent:
            return ProcessorTried(reason=self.silent[trial.device])
        if ":" not in trial.device:
            of_kind = [name for name in self.devices if name.startswith(trial.device)]
            return ProcessorTried(devices=tuple(of_kind))
        answer = self.devices[trial.device]
        if isinstance(answer, str):
            return ProcessorTried(reason=answer)
        return ProcessorTried(flops_per_s=(answer,), name="T4", memory_bytes=GIB, dtypes=TYPES)

    def tried(self):
        return [trial.device for trial in self.asked if ":" in trial.device]


def choice(machine, backends=("torch",), **options):
    chosen = choose(
        OwnerChoice(memory_bytes=GIB, **options),
        EIGHT,
        "i5",
        backends=backends,
        environment={},
        attempt=machine.attempt,
        kinds=("cuda", "xpu"),
    )
    rows = [dict(row) for row in chosen.rows]
    assert read(dump({**GOOD, "processors": rows}))["processors"] == rows
    return chosen, list(words(chosen.rows, 8))[1:]


def test_the_fastest_is_taken_and_stated_with_all_that_is_known_of_it():
    chosen, reasons = choice(Accelerated({"cuda:0": 4e12, "cuda:1": 9e12}))
    assert (chosen.device, chosen.device_bytes, chosen.provider) == ("cuda:1", GIB, "")
    assert reasons == [
        "T4, cuda:0 (cuda) is left out: torch is no faster there than on cuda:1",
        "T4, cuda:1 (cuda): for torch models: 9,000 GFLOP/s",
    ]
    row = chosen.rows[2]
    assert (row["memory_bytes"], row["dtypes"]) == (GIB, list(TYPES))


def test_one_that_is_no_faster_than_the_cpu_is_left_out_unless_its_owner_names_it():
    chosen, reasons = choice(Accelerated({"xpu:0": 149e9}))
    assert chosen.device == ""
    assert reasons == ["T4, xpu:0 (xpu) is left out: torch is no faster there than on the CPU"]
    for name in ("xpu", "xpu:0"):
        assert choice(Accelerated({"xpu:0": 149e9}), device=name)[0].device == "xpu:0"


@pytest.mark.parametrize("name", ["", "cuda", "cuda:0"])
@pytest.mark.parametrize("why", ["its trial crashed (SIGSEGV): no last words", "no driver"])
def test_one_that_fails_leaves_the_cpu_and_its_reason(name, why):
    chosen, reasons = choice(Accelerated({"cuda:0": why}), device=name)
    assert (chosen.device, chosen.threads) == ("", 4)
    assert reasons == [f"cuda:0 (cuda) is left out: torch: {why}"]


def test_a_kind_whose_listing_crashes_leaves_the_others():
    machine = Accelerated({"xpu:0": 9e12}, {"cuda": "its trial crashed (SIGABRT): libcuda"})
    chosen, reasons = choice(machine)
    assert chosen.device == "xpu:0"
    assert reasons[1] == "cuda (cuda) is left out: torch: its trial crashed (SIGABRT): libcuda"


def test_only_what_the_owner_has_named_is_tried():
    machine = Accelerated({"cuda:0": 4e12, "cuda:1": 9e12, "xpu:0": 1e13})
    chosen, reasons = choice(machine, device="cuda:0")
    assert (chosen.device, machine.tried()) == ("cuda:0", ["cuda:0"])
    assert reasons[1] == "cuda:1 (cuda) is left out: cuda:0 was asked for"
    for name in ({"device": "cpu"}, {"is_emulated": True}):
        machine = Accelerated({"cuda:0": 4e12})
        assert choice(machine, **name)[0].device == ""
        assert machine.tried() == []


def test_both_libraries_may_use_one_accelerator():
    machine = Accelerated({"cuda:0": 9e12}, accelerators={"cuda": 8e12})
    for name in ("", "cuda", "cuda:0"):
        chosen, _ = choice(machine, ("torch", "onnxruntime"), device=name)
        assert (chosen.device, chosen.provider) == ("cuda:0", "cuda")
    assert choice(machine, ("onnxruntime",))[0].device == ""


@pytest.mark.parametrize("name", ["mps", "cuda:3"])
def test_one_that_is_not_there_is_refused_with_those_that_are(name):
    with pytest.raises(AgentError, match=f"--device {name}: .*there are cpu, cuda:0"):
        choice(Accelerated({"cuda:0": 9e12}), device=name)


def test_kinds_are_those_whose_files_are_here():
    assert set(kinds_here()) <= {"cuda", "xpu", "mps"}


@pytest.mark.long
def test_a_trial_of_a_device_that_is_not_there_says_so():
    torch = pytest.importorskip("torch")
    if torch.backends.cuda.is_built():
        pytest.skip("this torch is built for CUDA")
    assert attempt(TryProcessor(device="cuda")) == ProcessorTried()
    reasons = attempt(TryProcessor(device="cuda:0", memory_bytes=GIB))
    assert reasons == ProcessorTried(reason="Torch not compiled with CUDA enabled")


ANSWERS = {
    "devices of another kind": "ProcessorTried(devices=('xpu:0',))",
    "one device twice": "ProcessorTried(devices=('cuda:0', 'cuda:0'))",
    "a device without a number": "ProcessorTried(devices=('cuda',))",
    "more than there can be": "ProcessorTried(devices=('cuda:16',))",
    "a rate beside a list": "ProcessorTried(flops_per_s=(1e9,))",
}
OF_ONE = {
    "no rate": "ProcessorTried()",
    "a type that nobody has": "ProcessorTried(flops_per_s=(1e9,), dtypes=('float8',))",
    "less memory than none": "ProcessorTried(flops_per_s=(1e9,), memory_bytes=-1)",
    "a name that rings": "ProcessorTried(flops_per_s=(1e9,), name='\\a')",
}


@pytest.mark.few(1)
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize(
    ("device", "says"),
    [
        *(("cuda", says) for says in ANSWERS.values()),
        *(("cuda:0", says) for says in OF_ONE.values()),
    ],
    ids=[*ANSWERS, *OF_ONE],
)
def test_a_trial_that_was_taken_over_tells_nothing(tmp_path, monkeypatch, device, says):
    taken_over(tmp_path, monkeypatch, "", SAYS.format(f"pack({says})"))
    answer = attempt(TryProcessor(device=device, memory_bytes=GIB))
    assert answer.reason.startswith("its trial")
    assert (answer.devices, answer.flops_per_s, answer.dtypes) == ((), (), ())
