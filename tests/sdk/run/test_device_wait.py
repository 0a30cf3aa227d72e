"""All devices are lost: a training waits for one to come back, and goes on where it was."""

from concurrent.futures import CancelledError

import pytest
from tests.sdk.run.conftest import make_data
from tests.sdk.run.test_recovery import (
    BATCH,
    EPOCHS,
    ROWS,
    A,
    B,
    C,
    check_learned,
    deployed,
    inject_after,
)

from potluck.errors import DeviceGone, UserError
from potluck.testing.faults import memory_of
from potluck.testing.memory import memory_home

torch = pytest.importorskip("torch")


@pytest.fixture
def home():
    with memory_home(3) as home:
        yield home


@pytest.fixture
def lab(home):
    return memory_of(home)


def loader():
    x, y = make_data("mlp", ROWS)
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=BATCH)


def lose_all(home, lab, after):
    inject_after(home, [(after, lambda name=name: lab.kill(name)) for name in (A, B, C)])


@pytest.mark.few(1)
@pytest.mark.parametrize("back", [A, C])
@pytest.mark.parametrize("after", [60, 90, 130])
def test_a_training_that_all_have_left_waits_and_learns_what_one_machine_learns(
    home, lab, after, back
):
    run, notes = deployed(home), []
    lose_all(home, lab, after)
    fit = run.fit(loader(), epochs=EPOCHS)

    def watch(_, text):
        if text.startswith("waiting"):
            notes.append(text)
            if len(notes) == 40 and not lab.is_there(back):
                lab.restart(back)

    fit.listen(watch)
    history = fit.wait()
    check_learned(run, history)
    assert A in notes[0]
    assert "10 min" in notes[0]
    assert run.plan.devices == (back,)


@pytest.mark.long
@pytest.mark.parametrize("seconds", [5, 60])  # in which agents keep a session, and end it
def test_a_network_that_was_away_for_a_while_costs_time_alone(home, lab, seconds):
    run, notes = deployed(home), []
    inject_after(home, [(90, lambda: [lab.pull(name) for name in (A, B, C)])])
    fit = run.fit(loader(), epochs=EPOCHS)

    def watch(_, text):
        if text.startswith("waiting"):
            notes.append(text)
            if len(notes) == 2 * seconds:
                for name in (A, B, C):
                    lab.plug(name)

    fit.listen(watch)
    check_learned(run, fit.wait())


@pytest.mark.long
def test_whoever_waits_may_stop_and_train_on_later(home, lab):
    run = deployed(home)
    lose_all(home, lab, 90)
    fit = run.fit(loader(), epochs=EPOCHS)
    fit.listen(lambda _, text: fit.cancel() if text.startswith("waiting") else None)
    with pytest.raises(CancelledError):
        fit.wait()
    lab.restart(B)
    n_begun = run.step
    x, y = make_data("mlp", ROWS)
    batches = [(x[i : i + BATCH], y[i : i + BATCH]) for i in range(0, ROWS, BATCH)] * EPOCHS
    run.fit(batches[n_begun:]).wait()
    check_learned(run, run.history)


def test_patience_ends(home, lab):
    run = deployed(home, patience_s=20.0)
    lose_all(home, lab, 90)
    with pytest.raises(DeviceGone):
        run.fit(loader(), epochs=EPOCHS).wait()


@pytest.mark.parametrize("patience_s", [-1, "long", float("inf"), True])
def test_a_patience_that_is_none_is_refused(home, patience_s):
    with pytest.raises(UserError, match="patience_s is a number of seconds"):
        deployed(home, patience_s=patience_s)
