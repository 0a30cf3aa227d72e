"""What a device sends home is believed only as what it was asked for: lies of every kind about a
tensor's type, shape and bytes name the device, and reach neither the user nor torch.
"""

from dataclasses import replace

import pytest
from tests.sdk.run.conftest import make_data, make_model, make_net, make_plan, train_alone

from potluck.errors import ProtocolError
from potluck.testing.internals import engine_of

torch = pytest.importorskip("torch")
A, B = "local-1", "local-2"


def resized(raw, shape):
    """With as many bytes as such a shape has."""
    import math

    n_bytes = math.prod(shape) * 4
    return replace(raw, shape=shape, data=bytearray(n_bytes))


LIES = {
    "another float of as many bytes": lambda raw: replace(raw, dtype="int32"),
    "half the bytes for the type": lambda raw: replace(raw, dtype="float64"),
    "a type that is none": lambda raw: replace(raw, dtype="complex"),
    "transposed": lambda raw: replace(raw, shape=(*raw.shape[::-1], 1)),
    "flat": lambda raw: replace(raw, shape=(sum(raw.shape),)),
    "empty": lambda raw: resized(raw, (0,)),
    "one row more": lambda raw: resized(raw, (raw.shape[0] + 1, *raw.shape[1:])),
    "one row less": lambda raw: resized(raw, (raw.shape[0] - 1, *raw.shape[1:])),
    "one dimension more": lambda raw: replace(raw, shape=(*raw.shape, 1)),
    "bytes too few": lambda raw: replace(raw, data=raw.data[:-4]),
    "bytes too many": lambda raw: replace(raw, data=bytes(raw.data) + bytes(4)),
}


def lying(run, monkeypatch, lie, device=B):
    """From now on this device lies about all that it sends home but losses."""
    engine = engine_of(run)
    result = engine.result

    def lying_result(future):
        execution = result(future)
        outputs = {
            (name, value): lie(raw) if name == device and len(raw.shape) > 1 else raw
            for (name, value), raw in execution.outputs.items()
        }
        return replace(execution, outputs=outputs)

    monkeypatch.setattr(engine, "result", lying_result)


@pytest.mark.few(2)
@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("shares", [((B,), (4,)), ((A, B), (2, 2))], ids=["alone", "shared"])
def test_an_answer_of_another_type_names_the_device(home, monkeypatch, lie, shares):
    _, model = make_model("mlp")
    plan = make_plan(model, ((A,), (4,)), shares, micro_batch=4, training=False)
    run, (x, _) = home.deploy(plan, model).wait(), make_data("mlp", 8)
    right = run(x)
    with monkeypatch.context() as patch:
        lying(run, patch, LIES[lie])
        with pytest.raises(ProtocolError, match=f"{B}: it sent .* as the output .*; expected"):
            run(x)
    assert torch.equal(run(x), right)
    run.close()


@pytest.mark.few(2)
@pytest.mark.parametrize("lie", LIES)
def test_weights_and_moments_of_another_type_name_the_device(home, monkeypatch, tmp_path, lie):
    _, model = make_model("mlp")
    plan = make_plan(model, ((A,), (4,)), ((B,), (4,)), micro_batch=4)
    run = home.deploy(plan, model, protect=False).wait()
    run.fit(make_data("mlp", 8)).wait()
    right = run.state_dict()
    with monkeypatch.context() as patch:
        lying(run, patch, LIES[lie])
        with pytest.raises(ProtocolError, match=f"{B}: it sent .*; expected"):
            run.state_dict()
        with pytest.raises(ProtocolError, match=f"{B}: it sent .*; expected"):
            run.save(tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert all(torch.equal(run.state_dict()[name], tensor) for name, tensor in right.items())
    run.close()


def test_training_goes_on_without_who_lies(home, monkeypatch):
    """Its own lies cost it its part, once they come a second time."""
    _, model = make_model("mlp")
    plan = make_plan(model, ((A,), (4,)), ((B,), (4,)), micro_batch=4)
    run = home.deploy(plan, model, protect=1).wait()
    first = run.fit(make_data("mlp", 8)).wait()
    lying(run, monkeypatch, LIES["flat"])
    history = run.fit(make_data("mlp", 8)).wait()
    assert run.plan.devices == (A,)
    assert {recovery.device for recovery in history.recoveries} == {B}
    alone, (x, y) = make_net("mlp"), make_data("mlp", 8)
    losses = train_alone(
        alone,
        x,
        y,
        batch=4,
        micro_batch=4,
        epochs=2,
        make_optimizer=lambda weights: torch.optim.AdamW(weights, 1e-3),
    )
    assert [*first.losses, *history.losses] == pytest.approx(losses, abs=1e-5)
    run.close()
