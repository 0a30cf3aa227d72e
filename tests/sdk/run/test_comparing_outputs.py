"""Models whose answer compares the rows of a batch, as scores of all images for all texts do: a
batch goes through them at once, and the answer is that of one machine.
"""

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.sdk.run.conftest import make_plan

import potluck
from potluck.errors import ModelError, PlanError
from potluck.run.requests import MOST_SIZES
from potluck.testing.faults import memory_of
from potluck.testing.memory import memory_home

torch = pytest.importorskip("torch")
A, B, C = (f"local-{i}" for i in (1, 2, 3))
ROWS = 8
PLANS = {
    "one": [((A,), (8,))],
    "pipeline": [((A,), (8,)), ((B,), (8,))],
    "shared before": [((A, B), (5, 3)), ((C,), (8,))],
}


def tower(width):
    return torch.nn.Sequential(torch.nn.Linear(width, 16), torch.nn.Tanh(), torch.nn.Linear(16, 8))


class Scores(torch.nn.Module):
    """What CLIP returns: scores of all for all, embeddings, and here a number of the batch."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right = tower(6), tower(5)

    def forward(self, x, y):
        normal = torch.nn.functional.normalize
        left, right = normal(self.left(x), dim=-1), normal(self.right(y), dim=-1)
        scores = left @ right.T * 5.0
        return {"scores": scores, "left": left, "mean": scores.mean()}


def batch_of(rows, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 6, generator=generator), torch.randn(rows, 5, generator=generator)


def model_of(net, **more):
    return potluck.Model.from_torch(net, batch_of(ROWS), compares_rows=True, **more)


def plan_of(model, name, **more):
    return make_plan(model, *PLANS[name], micro_batch=ROWS, training=False, **more)


def check_answers(run, net, rows, seed=1):
    with torch.no_grad():
        expected = net.eval()(*batch_of(rows, seed))
    answer = run(*batch_of(rows, seed))
    assert answer.keys() == expected.keys()
    for name, tensor in expected.items():
        assert answer[name].shape == tensor.shape, (rows, name)
        assert torch.allclose(answer[name], tensor, atol=1e-6), (rows, name)


@pytest.fixture(scope="module")
def trio():
    torch.set_num_threads(1)
    with memory_home(3) as opened:
        yield opened


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["one", "pipeline"])
def test_any_number_of_rows_is_compared_with_each_other_and_with_no_more(trio, name):
    net = Scores()
    model = model_of(net)
    run = trio.deploy(plan_of(model, name), model).wait()
    for rows in (ROWS, 3, 1, 11, 3):
        check_answers(run, net, rows)
    run.close()


@pytest.mark.long
def test_more_numbers_of_rows_are_answered_than_programs_are_kept(trio):
    net = Scores()
    model = model_of(net)
    run = trio.deploy(plan_of(model, "pipeline"), model).wait()
    for rows in range(1, MOST_SIZES + 6):
        check_answers(run, net, rows)
    check_answers(run, net, 1)  # its program has made room for others
    run.close()


def test_several_threads_ask_for_different_numbers_of_rows(trio):
    net = Scores().eval()
    model = model_of(net)
    run = trio.deploy(plan_of(model, "pipeline"), model).wait()
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(check_answers, run, net, 1 + i % 5, seed=i) for i in range(20)]
        for each in futures:
            each.result()
    run.close()


def test_stages_that_share_rows_answer_the_plans_own_number(trio):
    net = Scores()
    model = model_of(net)
    run = trio.deploy(plan_of(model, "shared before"), model).wait()
    check_answers(run, net, ROWS)
    with pytest.raises(PlanError, match="one number of rows at once, 8; not 3"):
        run(*batch_of(3))
    check_answers(run, net, ROWS, seed=2)  # it goes on
    run.close()


def test_plans_that_divide_the_rows_are_refused(trio):
    model = model_of(Scores())
    halves = make_plan(model, ((A, B), (4, 4)), micro_batch=ROWS, training=False)
    with pytest.raises(PlanError, match=r"an output compares rows, and local-1, local-2 share"):
        trio.deploy(halves, model).wait()
    parts = make_plan(model, ((A,), (4,)), micro_batch=4, n_micro_batches=2, training=False)
    with pytest.raises(PlanError, match=r"2 micro-batches.*Inference\(batch=8\)"):
        trio.deploy(parts, model).wait()


@pytest.mark.long
def test_planners_leave_all_rows_to_the_device_that_compares_them(trio):
    model = model_of(Scores())
    profile = trio.profile(model, train=False, rows=(1, 8), repeats=1).wait()
    for workload in (potluck.Inference(batch=8), potluck.Inference(batch=8, streaming=True)):
        plans = potluck.plan(profile, workload)
        assert plans
        for plan in plans:
            assert plan.n_micro_batches == 1
            assert len(plan.stages[-1].devices) == 1


def test_requests_go_on_after_a_switch_and_a_loss_of_a_device():
    torch.set_num_threads(1)
    with memory_home(3) as home:
        net = Scores()
        model = model_of(net)
        run = home.deploy(plan_of(model, "one"), model).wait()
        check_answers(run, net, 5)
        run.switch(plan_of(model, "pipeline")).wait()
        check_answers(run, net, 5)
        memory_of(home).kill(B)
        check_answers(run, net, 7)  # a number of rows that it has no program for


def contrastive(answer):
    scores = answer["scores"]
    return torch.nn.functional.cross_entropy(scores, torch.arange(scores.shape[0]))


@pytest.mark.long
def test_it_trains_and_answers_as_on_one_machine(trio):
    net = Scores()
    alone = copy.deepcopy(net)
    model = model_of(net, loss=contrastive)
    plan = make_plan(model, *PLANS["shared before"], micro_batch=ROWS)
    run = trio.deploy(plan, model).wait()
    batches = [batch_of(rows, seed=i) for i, rows in enumerate((ROWS, ROWS, 5, 9))]
    run.fit(batches, optimizer=torch.optim.SGD(net.parameters(), 0.1)).wait()
    optimizer, losses = torch.optim.SGD(alone.parameters(), 0.1), []
    for batch in batches:
        loss = contrastive(alone(*batch))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert run.history.losses == pytest.approx(losses, abs=1e-5)
    check_answers(run, alone, 6)
    score = run.evaluate([batch_of(6), batch_of(3)], lambda answer: contrastive(answer))
    with torch.no_grad():
        parts = [contrastive(alone(*batch_of(n))).item() * n for n in (6, 3)]
    assert score == pytest.approx(sum(parts) / 9, abs=1e-5)
    run.close()


class Paired(Scores):
    """As CLIP with return_loss=True: it computes its loss itself, of its inputs alone."""

    def forward(self, image, text):
        answer = super().forward(image, text)
        return {"loss": contrastive(answer), "scores": answer["scores"]}


@pytest.mark.long
def test_a_module_that_computes_its_loss_of_the_inputs_alone_trains_and_answers(trio):
    net, (x, y) = Paired(), batch_of(ROWS)
    alone = copy.deepcopy(net)
    model = potluck.Model.from_torch(net, {"image": x, "text": y}, loss="loss", compares_rows=True)
    plan = make_plan(model, *PLANS["pipeline"], micro_batch=ROWS)
    run = trio.deploy(plan, model).wait()
    run.fit([{"image": x, "text": y}] * 2, optimizer=torch.optim.SGD(net.parameters(), 0.1)).wait()
    optimizer = torch.optim.SGD(alone.parameters(), 0.1)
    for _ in range(2):
        alone(x, y)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        expected = alone(*batch_of(5))
    answer = run(*batch_of(5))
    assert torch.allclose(answer["loss"], expected["loss"], atol=1e-6)
    assert torch.allclose(answer["scores"], expected["scores"], atol=1e-6)
    run.close()


def test_a_loss_that_lacks_its_targets_is_refused():
    for loss in (torch.nn.functional.mse_loss, torch.nn.MSELoss(), lambda a, b: a.mean()):
        with pytest.raises(ModelError, match=r"example of the targets.*loss\(output\)"):
            potluck.Model.from_torch(tower(6), torch.randn(4, 6), loss=loss)
    with pytest.raises(ModelError, match=r"of which targets.*compares_rows=True"):
        potluck.Model.from_torch(
            Paired(), dict(zip(("image", "text"), batch_of(4), strict=True)), loss="loss"
        )


def test_a_loss_of_the_output_alone_is_divided_where_it_is_a_mean_over_rows(trio):
    net, x = tower(6), torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(1))
    alone = copy.deepcopy(net)

    def loss(answer):
        return answer.square().mean()

    model = potluck.Model.from_torch(net, x, loss=loss)
    plan = make_plan(model, ((A, B), (1, 3)), micro_batch=4, n_micro_batches=2)
    run = trio.deploy(plan, model).wait()
    run.fit(x, epochs=2, optimizer=torch.optim.SGD(net.parameters(), 0.1)).wait()
    optimizer = torch.optim.SGD(alone.parameters(), 0.1)
    for _ in range(2):
        loss(alone(x)).backward()
        optimizer.step()
        optimizer.zero_grad()
    for name, tensor in alone.state_dict().items():
        assert torch.allclose(run.state_dict()[name], tensor, atol=1e-6), name
    run.close()


def test_rows_that_are_scored_together_are_compared_with_each_other(trio):
    net, rows = Scores(), 700
    model = model_of(net)
    run = trio.deploy(plan_of(model, "pipeline"), model).wait()
    batch = batch_of(rows)
    with torch.no_grad():
        expected = contrastive(net.eval()(*batch)).item()
    assert run.evaluate(batch, lambda answer: contrastive(answer)) == pytest.approx(expected)
    run.close()


def test_a_loss_alone_that_compares_rows_leaves_answers_divided(trio):
    class Apart(Scores):
        def forward(self, x, y):
            return self.left(x), self.right(y)

    def loss(answer):
        return contrastive({"scores": answer[0] @ answer[1].T})

    model = model_of(Apart(), loss=loss)
    assert model.layers(True)[-1].whole_batch
    assert not model.layers()[-1].whole_batch


def test_without_being_said_it_is_refused_and_told_what_to_do():
    with pytest.raises(ModelError, match=r"one result for each row.*compares_rows=True"):
        potluck.Model.from_torch(Scores(), batch_of(ROWS))


def test_a_saved_model_still_compares_rows(tmp_path, trio):
    net = Scores()
    model_of(net).save(tmp_path / "model")
    back = potluck.Model.load(tmp_path / "model")
    run = trio.deploy(plan_of(back, "pipeline"), back).wait()
    got = run(*batch_of(3))
    with torch.no_grad():
        expected = net.eval()(*batch_of(3))
    scores = got["scores"] if isinstance(got, dict) else got[0]
    assert torch.allclose(scores, expected["scores"], atol=1e-6)
    run.close()


def test_requests_of_several_users_are_not_put_together(trio):
    model = model_of(Scores())
    with pytest.raises(ModelError, match="cannot be served"):
        trio.serve(model, slo=potluck.Latency(1.0))


def test_its_rows_are_not_divided_with_helpers():
    class Alike(torch.nn.Module):
        def forward(self, x):
            return x @ x.T

    from potluck.offload.accelerate import read_model

    x = torch.randn(4, 6)
    model = potluck.Model.from_torch(Alike(), x, compares_rows=True)
    with pytest.raises(ModelError, match="cannot be accelerated"):
        read_model(model, x)
