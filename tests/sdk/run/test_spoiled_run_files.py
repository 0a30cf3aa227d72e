"""A saved run whose tensors are not those of the run is refused by its own name, whichever it is:
no device is blamed, and nothing goes on with part of it.
"""

import pytest
from tests.sdk.run.conftest import make_data, make_model, make_plan

from potluck.errors import FileError
from potluck.tensor_file import CHECKSUM, read_tensors, write_tensors
from potluck.testing.memory import memory_home

torch = pytest.importorskip("torch")
SPOILED = {
    "is not there": lambda tensor: None,
    "flat": lambda tensor: tensor.reshape(-1).clone() if tensor.ndim != 1 else tensor[None].clone(),
    "longer": lambda tensor: torch.cat([tensor.reshape(-1)] * 2),
    "empty": lambda tensor: torch.zeros(0),
    "whole numbers": lambda tensor: tensor.to(torch.int64),
}


@pytest.fixture(scope="module")
def home():
    torch.set_num_threads(1)
    with memory_home(2) as opened:
        yield opened


@pytest.fixture(scope="module")
def saved(home, tmp_path_factory):
    """A model, its plan, and a file of a run of these."""
    path = tmp_path_factory.mktemp("saved") / "run.safetensors"
    _, model = make_model("mlp")
    plan = make_plan(model, (("local-1",), (4,)), (("local-2",), (4,)), micro_batch=4)
    run = home.deploy(plan, model).wait()
    run.fit(make_data("mlp", 8)).wait()
    run.save(path)
    run.close()
    return model, plan, path


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED)
def test_no_tensor_of_a_file_may_be_another_than_the_runs(home, saved, tmp_path, spoil):
    model, plan, path = saved
    tensors, metadata = read_tensors(path, "")
    del metadata[CHECKSUM]
    kept = [name for name in tensors if name.startswith(("weight/", "optimizer/"))]
    assert len(kept) == 6 * 4  # AdamW keeps two moments and a count of each weight
    for name in kept:
        other = spoil(tensors[name])
        rest = {each: tensor for each, tensor in tensors.items() if each != name}
        spoiled = tmp_path / "spoiled.safetensors"
        write_tensors(spoiled, rest if other is None else rest | {name: other}, metadata)
        with pytest.raises(FileError) as refused:
            home.deploy(plan, model, resume=spoiled).wait()
        assert str(spoiled) in str(refused.value)
        assert name.partition("/")[2] in str(refused.value)
    run = home.deploy(plan, model, resume=path).wait()
    assert run.step == 2
    run.close()
