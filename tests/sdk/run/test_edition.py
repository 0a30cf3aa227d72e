"""Plans for other batch sizes, evaluation plans, and what editions ask the devices for."""

import json

import pytest
from tests.sdk.run.conftest import make_model, make_plan

import potluck
from potluck.errors import PlanError
from potluck.run.edition import evaluation_plan, make_edition, resized, usable_rows

A, B, C = "a", "b", "c"
TORCH = dict.fromkeys((A, B, C), ("torch",))


@pytest.mark.parametrize(
    ("rows", "micro_batch", "n", "shares"),
    [(8, 4, 2, (3, 1)), (6, 3, 2, (2, 1)), (4, 4, 1, (3, 1)), (2, 2, 1, (1, 1)), (9, 3, 3, (2, 1)), (10, 2, 5, (1, 1))],
)
def test_a_plan_for_another_batch_keeps_every_replica_busy(rows, micro_batch, n, shares):
    _, model = make_model("mlp")
    plan = make_plan(model, ((A, B), (3, 1)), ((C,), (4,)), micro_batch=4, n_micro_batches=2)
    fitted = resized(plan, rows)
    assert (fitted.micro_batch, fitted.n_micro_batches) == (micro_batch, n)
    assert fitted.stages[0].shares == shares
    assert fitted.batch == rows


def test_rows_that_cannot_be_shared():
    _, model = make_model("mlp")
    plan = make_plan(model, ((A, B), (2, 2)), micro_batch=4)
    with pytest.raises(PlanError, match="7 rows cannot be shared by 2 devices"):
        resized(plan, 7)
    assert [usable_rows(plan, rows) for rows in (1, 2, 5, 7)] == [0, 2, 4, 6]


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
    edition = make_edition(model, plan, run="r", epoch=3, optimizer=potluck.AdamW(), backends=TORCH, sizes=(2,))
    requests = edition.requests()
    for device, (order, buffers) in requests.items():
        document = json.loads(buffers[0])
        assert (order.run, order.epoch) == ("r", 3)
        assert order.memory_bytes == edition.memory_bytes(device) > 0
        assert len(document["segments"]) == len(buffers) - 1 == 1
        names = [program["name"] for program in document["programs"]]
        assert names == ["train", "train-2", "push", "pull", "push-optimizer", "pull-optimizer"]


def test_a_plan_for_another_number_of_layers_is_refused():
    _, mlp = make_model("mlp")
    from dataclasses import replace

    plan = make_plan(mlp, ((A,), (4,)), micro_batch=4)
    longer = replace(plan, stages=(replace(plan.stages[0], stop=plan.stages[0].stop + 1),))
    with pytest.raises(PlanError, match="layers, the model"):
        make_edition(mlp, longer, run="r", epoch=0, optimizer=potluck.AdamW(), backends=TORCH)
