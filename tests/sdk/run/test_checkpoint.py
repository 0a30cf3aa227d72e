"""A saved run comes back as it was, or not at all."""

import random
from dataclasses import replace

import pytest

from potluck.errors import FileError, UserError
from potluck.records import Plan, Stage
from potluck.run import checkpoint
from potluck.run.checkpoint import Checkpoint, load, save
from potluck.run.optimizers import AdamW, read_optimizer
from potluck.run.weight_update import Update
from potluck.tensor_file import read_tensors, write_tensors

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")


@pytest.fixture
def saved():
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


def test_it_comes_back_as_it_was(saved, tmp_path):
    save(tmp_path / "run.safetensors", saved)
    back = load(tmp_path / "run.safetensors")
    assert (back.plan, back.optimizer, back.step, back.seed) == (
        saved.plan,
        saved.optimizer,
        saved.step,
        saved.seed,
    )
    assert back.wanted is None
    save(tmp_path / "run.safetensors", replace(saved, wanted=saved.plan))
    assert load(tmp_path / "run.safetensors").wanted == saved.plan
    for kept, wanted in ((back.weights, saved.weights), (back.moments, saved.moments)):
        assert kept.keys() == wanted.keys()
        assert all(torch.equal(kept[name], wanted[name]) for name in wanted)


@pytest.mark.long
def test_no_flipped_bit_is_accepted_wherever_it_is(saved, tmp_path):
    path, draw = tmp_path / "run.safetensors", random.Random(0)
    save(path, saved)
    data = path.read_bytes()
    for at in range(len(data)):
        spoilt = bytearray(data)
        spoilt[at] ^= 1 << draw.randrange(8)
        path.write_bytes(spoilt)
        with pytest.raises(FileError, match=r"run\.safetensors"):
            load(path)


def test_a_file_of_before_there_were_checksums_is_accepted(saved, tmp_path):
    path = tmp_path / "run.safetensors"
    save(path, saved)
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
    saved, tmp_path, field, text
):
    path = tmp_path / "run.safetensors"
    save(path, saved)
    tensors, metadata = read_tensors(path, "")
    del metadata[checkpoint.CHECKSUM]
    write_tensors(path, tensors, {**metadata, field: text})
    with pytest.raises(FileError, match="does not hold"):
        load(path)


@pytest.mark.parametrize("settings", [None, [], "adamw", 3, True])
def test_an_optimizer_that_is_no_object_is_said(settings):
    with pytest.raises(UserError, match="an optimizer is an object of settings"):
        read_optimizer(settings)


HUGE = "1" + "0" * 400
ODD = {
    "json": (
        "{}",
        "[]",
        '"x"',
        "7",
        "null",
        "true",
        "1e999",
        "[[[]]]",
        '{"a": 1e999}',
        "\ud7ff",
        "",
    ),
    "position": (
        '{"epoch": 1e999, "n_batches": 0, "loader": null, "generator": null}',
        '{"epoch": 0, "n_batches": -1, "loader": null, "generator": null}',
        '{"epoch": true, "n_batches": 0, "loader": null, "generator": null}',
        '{"epoch": 0, "n_batches": 0, "loader": {"bytes": "0"}, "generator": null}',
        '{"epoch": 0, "n_batches": 0, "loader": {"bytes": []}, "generator": null}',
        '{"epoch": 0, "n_batches": 0, "loader": {"map": [[{"list": []}, 1]]}, "generator": null}',
        '{"epoch": 0, "n_batches": 0, "loader": null, "generator": 7}',
    ),
    "schedule": (
        '{"name": "a", "every": "step", "began": 1e999}',
        '{"name": "a", "every": "step", "began": true}',
        '{"name": "a", "every": "night", "began": 1}',
        '{"name": null, "every": {}, "began": []}',
    ),
    "update": ('{"groups": 7}', '{"groups": [7]}', '{"clip_norm": "x"}', '{"norm_order": 0}'),
    "number": ("-5", str(2**60), HUGE, "1_0", " 3 ", "٣", "1e3", "", "nan"),
}
CASES = [
    *((name, text) for name in ("position", "schedule", "optimizer") for text in ODD["json"]),
    *(("update", text) for text in ODD["json"] if not text.startswith("{")),
    *((name, text) for name in ("position", "schedule", "update") for text in ODD[name]),
    *((name, text) for name in ("step", "seed") for text in ODD["number"]),
    *((name, text) for name in ("plan", "wanted") for text in ("", "x=1", "format=1", "\x00")),
]


@pytest.mark.long
@pytest.mark.parametrize(("name", "text"), CASES)
def test_whatever_it_says_of_itself_it_is_read_or_refused_in_words(saved, tmp_path, name, text):
    path = tmp_path / "run.safetensors"
    save(path, saved)
    tensors, metadata = read_tensors(path, "")
    del metadata[checkpoint.CHECKSUM]
    write_tensors(path, tensors | {"loader/0": torch.tensor(2**62)}, {**metadata, name: text})
    with pytest.raises(FileError, match=r"does not hold|is not as it was written"):
        load(path)
    if name == "step":
        with pytest.raises(FileError, match="is no state of a run"):
            checkpoint.step_of(path)
