"""A run never waits for itself: what a fit calls may use the run, and is told where it must not
wait.
"""

import pytest
from tests.sdk.run.conftest import make_data, make_model, make_plan
from tests.timeouts import TIMEOUT_S

import potluck
from potluck.errors import UserError

torch = pytest.importorskip("torch")

A, B = "local-1", "local-2"
N_STEPS = 3


@pytest.fixture
def run(home):
    _, model = make_model("mlp")
    plan = make_plan(model, ((A,), (4,)), ((B,), (4,)), micro_batch=4)
    opened = home.deploy(plan, model, optimizer=potluck.SGD(0.1)).wait()
    yield opened
    opened.close()


USES = {
    "another fit": lambda run, batch: run.fit([batch]).wait(),
    "a fit behind another": lambda run, batch: (run.fit([batch]), run.fit([batch]))[1].wait(),
    "its losses": lambda run, batch: run.fit([batch]).losses,
}


@pytest.mark.few(2)
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("where", ["on_step", "loader"])
def test_waiting_for_a_fit_inside_one_is_refused(run, use, where):
    batch, raised = make_data("mlp", 4), []

    def inside(*_):
        if not raised:
            raised.append(None)
            with pytest.raises(UserError, match=r"would wait for itself.*after the work") as found:
                USES[use](run, batch)
            raised[0] = found.value

    def loader():
        for _ in range(N_STEPS):
            if where == "loader":
                inside()
            yield batch

    fitted = run.fit(loader(), on_step=inside if where == "on_step" else None)
    assert len(fitted.wait(TIMEOUT_S).losses) == N_STEPS
    assert isinstance(raised[0], UserError)
    run.fit([batch]).wait(TIMEOUT_S)  # comes after those that were only begun
    extra = {"another fit": 1, "a fit behind another": 2, "its losses": 1}[use]
    assert run.step == N_STEPS + extra + 1


@pytest.mark.few(1)
@pytest.mark.parametrize("queued", [False, True])
def test_the_rest_of_a_run_may_be_used_inside_a_fit(run, tmp_path, queued):
    batch, done = make_data("mlp", 4), []

    def inside(step, _):
        if step > 1:
            return
        if queued:
            run.fit([batch])
        run.load_into()
        run.save(tmp_path / "run")
        run(batch[0])
        run.state_dict()
        run.switch(run.plan).wait()
        done.append(step)

    assert len(run.fit([batch] * N_STEPS, on_step=inside).wait(TIMEOUT_S).losses) == N_STEPS
    assert done == [1]
    run.fit([batch]).wait(TIMEOUT_S)  # comes after the one that was begun inside
    assert run.step == N_STEPS + queued + 1
