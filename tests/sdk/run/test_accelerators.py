"""Real accelerators of torch, where this machine has one: each computes within a worker's bounds,
and a pipeline over it and the processor equals one machine.
"""

from contextlib import closing

import pytest
from tests.sdk.run.conftest import make_data, make_model, make_plan, train_alone

import potluck
from potluck.errors import DeviceError
from potluck.sessions.agent_specs import Spec
from potluck_agent.processors.torch_choice import kinds_here
from potluck_agent.processors.trial import attempt
from potluck_wire.messages import TryProcessor

torch = pytest.importorskip("torch")
KINDS = [kind for kind in kinds_here() if torch.get_device_module(kind).is_available()]
each_kind = pytest.mark.parametrize(
    "kind", KINDS or [pytest.param("", marks=pytest.mark.skip("no accelerator of torch is here"))]
)
BOARD, LAPTOP = "board", "laptop"
STAGES = {
    "accelerator first": [((BOARD,), (4,)), ((LAPTOP,), (4,))],
    "processor first": [((LAPTOP,), (4,)), ((BOARD,), (4,))],
    "shared": [((BOARD, LAPTOP), (3, 1)), ((BOARD,), (4,))],
    "accelerator alone": [((BOARD,), (4,))],
}


@pytest.fixture(scope="module")
def home(request):
    torch.set_num_threads(1)
    kind = request.param
    with potluck.Home.lab([Spec(name=BOARD, processor=kind), Spec(name=LAPTOP)]) as opened:
        yield opened


@each_kind
def test_an_accelerator_computes_within_the_bounds_of_a_worker(kind):
    (first, *_) = attempt(TryProcessor(device=kind, memory_bytes=1 << 30)).devices
    answer = attempt(TryProcessor(device=first, memory_bytes=1 << 30))
    assert answer.reason == ""
    assert answer.flops_per_s


@pytest.mark.parametrize("stages", STAGES.values(), ids=STAGES)
@pytest.mark.parametrize("model_kind", ["mlp", "cnn"])
@pytest.mark.parametrize("home", each_kind.args[1], indirect=True)
def test_a_pipeline_over_an_accelerator_and_the_processor_equals_one_machine(
    home, model_kind, stages
):
    net, model = make_model(model_kind)
    x, y = make_data(model_kind, 24)
    plan = make_plan(model, *stages, micro_batch=4, n_micro_batches=2)
    made = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    with closing(home.deploy(plan, model, optimizer=made).wait()) as run:
        losses = run.fit([(x[i : i + 8], y[i : i + 8]) for i in (0, 8, 16)] * 3).wait().losses
        alone = train_alone(
            net,
            x,
            y,
            batch=8,
            micro_batch=4,
            epochs=3,
            make_optimizer=lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9),
        )
        assert losses == pytest.approx(alone, abs=1e-5)
        with torch.no_grad():
            torch.testing.assert_close(run(x[:4]), net(x[:4]), rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_a_processor_that_is_not_there_is_named():
    with pytest.raises(DeviceError, match=r"--device xpu:7: .*there are cpu"):
        potluck.Home.lab([Spec(name=BOARD, processor="xpu:7")])
