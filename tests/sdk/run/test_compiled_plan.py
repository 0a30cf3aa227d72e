"""Plans for other batch sizes, evaluation plans, and what compiled plans ask the devices for."""

import json

import pytest
from tests.sdk.run.conftest import make_data, make_model, make_plan

import potluck
from potluck.errors import PlanError
from potluck.run import compiled_plan
from potluck.run.compiled_plan import compile_for_run, evaluation_plan
from potluck.run.weight_update import PLAIN

torch = pytest.importorskip("torch")

A = "a"
B = "b"
C = "c"
TORCH = dict.fromkeys((A, B, C), ("torch",))


@pytest.mark.few(5)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 9, 13])
def test_a_step_on_another_batch_has_as_few_micro_batches_as_hold_it(rows):
    _, model = make_model("mlp")
    plan = make_plan(model, ((A, B), (3, 1)), ((C,), (4,)), micro_batch=4, n_micro_batches=2)
    compiled = compile_for_run(
        model, plan, run="r", epoch=0, optimizer=PLAIN, backends=TORCH, sizes=(rows,)
    )
    step = compiled.compiled[f"train-{rows}"]
    runs = [i.attrs["rows"] for i in step.programs[C].instructions if i.op == "run"]
    assert runs == [[0, 4, 4]] * (rows // 4) + [[0, rows % 4, rows % 4]] * (rows % 4 > 0)
    (losses,) = step.results
    assert sum(losses.rows) == rows
    assert compiled.plan == plan


def test_batch_sizes_are_facts_and_not_read_from_the_names_of_programs(monkeypatch):
    _, model = make_model("mlp")
    plan = make_plan(model, ((A,), (4,)), micro_batch=4)
    monkeypatch.setattr(compiled_plan, "train_name", lambda rows, plan: "abc"[rows % 3])
    compiled = compile_for_run(
        model, plan, run="r", epoch=0, optimizer=PLAIN, backends=TORCH, sizes=(2, 3, 4)
    )
    assert compiled.train_rows == {"b": 4, "c": 2, "a": 3}
    assert compiled.sizes == (2, 3)


def test_a_share_of_single_values_is_refused_before_anything_is_sent():
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 4))
    x, y = make_data("mlp", 6)
    model = potluck.Model.from_torch(
        net, x, loss=torch.nn.functional.cross_entropy, example_targets=y
    )
    plan = make_plan(model, ((A, B), (3, 1)), micro_batch=4)
    with pytest.raises(
        PlanError, match=r"b: it takes 1 row .* more than 1 value per channel when training"
    ):
        compile_for_run(model, plan, run="r", epoch=0, optimizer=PLAIN, backends=TORCH)
    fair = make_plan(model, ((A, B), (2, 2)), micro_batch=4)
    assert (
        compile_for_run(model, fair, run="r", epoch=0, optimizer=PLAIN, backends=TORCH).plan == fair
    )


def test_an_evaluation_plan_covers_all_layers_once_and_asks_one_device_per_stage():
    _, model = make_model("cnn")
    plan = make_plan(model, ((A, B), (2, 2)), ((C,), (4,)), micro_batch=4)
    found = evaluation_plan(model, plan, 32)
    assert not found.training
    assert found.stages[-1].stop == len(model.layers(False))
    assert set(found.devices) <= {A, C}


def test_every_device_is_asked_for_its_own_pieces_and_programs():
    _, model = make_model("mlp")
    plan = make_plan(model, ((A,), (4,)), ((B,), (4,)), micro_batch=4)
    compiled = compile_for_run(
        model, plan, run="r", epoch=3, optimizer=PLAIN, backends=TORCH, sizes=(2,)
    )
    requests = compiled.requests()
    for device, (order, buffers) in requests.items():
        document = json.loads(buffers[0])
        assert (order.run, order.epoch) == ("r", 3)
        assert order.memory_bytes == compiled.memory_bytes(device) > 0
        assert len(document["segments"]) == len(buffers) - 1 == 1
        names = [program["name"] for program in document["programs"]]
        assert names == ["train", "train-2", "push", "pull", "push-optimizer", "pull-optimizer"]


def test_a_plan_for_another_number_of_layers_is_refused():
    _, mlp = make_model("mlp")
    from dataclasses import replace

    plan = make_plan(mlp, ((A,), (4,)), micro_batch=4)
    longer = replace(plan, stages=(replace(plan.stages[0], stop=plan.stages[0].stop + 1),))
    with pytest.raises(PlanError, match="layers, the model"):
        compile_for_run(mlp, longer, run="r", epoch=0, optimizer=PLAIN, backends=TORCH)
