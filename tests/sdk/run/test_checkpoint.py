"""A saved run comes back as it was, or not at all."""

import random

import pytest

from potluck.errors import FileError, UserError
from potluck.records import Plan, Stage
from potluck.run import checkpoint
from potluck.run.checkpoint import Checkpoint, load, save
from potluck.run.optimizers import AdamW, read_optimizer
from potluck.run.update import Update
from potluck.tensor_file import read_tensors, write_tensors

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")


@pytest.fixture
def whole():
    weights = {
        "w": torch.arange(6.0).reshape(2, 3),
        "none": torch.empty(0, 3),
        "n": torch.tensor(7),
    }
    weights["half"] = torch.ones(3, dtype=torch.bfloat16)
    plan = Plan(
        planner="mine",
        model="m",
        micro_batch=4,
        stages=(Stage(start=0, stop=1, devices=("a",), shares=(4,)),),
    )
    return Checkpoint(
        signature="s",
        plan=plan,
        optimizer=Update(optimizer=AdamW(lr=1e-3)),
        step=4,
        seed=5,
        weights=weights,
        moments={"w.first": torch.full((2, 3), 0.5)},
    )


def test_it_comes_back_as_it_was(whole, tmp_path):
    save(tmp_path / "run.safetensors", whole)
    back = load(tmp_path / "run.safetensors")
    assert (back.plan, back.optimizer, back.step, back.seed) == (
        whole.plan,
        whole.optimizer,
        whole.step,
        whole.seed,
    )
    for kept, wanted in ((back.weights, whole.weights), (back.moments, whole.moments)):
        assert kept.keys() == wanted.keys()
        assert all(torch.equal(kept[name], wanted[name]) for name in wanted)


def test_no_flipped_bit_is_accepted_wherever_it_is(whole, tmp_path):
    path, draw = tmp_path / "run.safetensors", random.Random(0)
    save(path, whole)
    data = path.read_bytes()
    for at in range(len(data)):
        spoilt = bytearray(data)
        spoilt[at] ^= 1 << draw.randrange(8)
        path.write_bytes(spoilt)
        with pytest.raises(FileError, match=r"run\.safetensors"):
            load(path)


def test_a_file_of_before_there_were_checksums_is_accepted(whole, tmp_path):
    path = tmp_path / "run.safetensors"
    save(path, whole)
    with safetensors.safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
        older = file.metadata() | {"format": checkpoint.OLDER}
    del older[checkpoint.CHECKSUM]
    safetensors.save_file(tensors, path, metadata=older)
    assert load(path).step == 4


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("position", '{"epoch": 1e999}'),
        ("position", "[]"),
        ("schedule", '{"name": "a", "every": "b", "began": 1e999}'),
        ("schedule", "7"),
        ("update", "[]"),
        ("update", "null"),
        ("step", "-5"),
        ("step", str(2**53)),
        ("step", "9" * 400),
        ("step", "9" * 5000),
        ("seed", "1e3"),
    ],
)
def test_a_right_checksum_over_what_does_not_hold_is_refused_in_a_sentence(
    whole, tmp_path, field, text
):
    path = tmp_path / "run.safetensors"
    save(path, whole)
    tensors, metadata = read_tensors(path, "")
    del metadata[checkpoint.CHECKSUM]
    write_tensors(path, tensors, {**metadata, field: text})
    with pytest.raises(FileError, match="does not hold"):
        load(path)


@pytest.mark.parametrize("settings", [None, [], "adamw", 3, True])
def test_an_optimizer_that_is_no_object_is_said(settings):
    with pytest.raises(UserError, match="an optimizer is an object of settings"):
        read_optimizer(settings)
