"""A device of the home was taken over, and says something legal once, or nothing at all any more: a
run that others can go on with goes on, and learns what one machine learns.
"""

from dataclasses import replace

import pytest
from tests.sdk.run.conftest import make_data, make_model, make_plan
from tests.sdk.run.test_recovery import A, B, C, check_learned, deployed, joined

from potluck.errors import DeviceGone
from potluck.testing.faults import memory_of
from potluck.testing.memory import memory_home
from potluck_wire import messages as m

torch = pytest.importorskip("torch")
STRANGE = "strange"  # a word of no list
ABOUT = {kind: m.NUMBER_OF[kind] for kind in (m.Hello, m.Execute)}
CODES, CAUSES = (
    [word for name, word in vars(words).items() if name.isupper()]
    for words in (m.RefusalCode, m.FailureCause)
)
FOR_ALL = (m.FailureCause.INPUT, m.FailureCause.ARITHMETIC)  # what values do, they do everywhere


@pytest.fixture
def home():
    with memory_home(3) as home:
        yield home


def refuses(kind, code):
    return lambda done: m.Refused(
        about=ABOUT[kind], code=code, text="x", run=done.run, epoch=done.epoch
    )


def fails(cause):
    return lambda done: m.Failed(
        run=done.run, epoch=done.epoch, program=done.program, step=done.step, cause=cause, text="x"
    )


SAID = {
    **{
        f"refuses {kind.__name__}, {code}": refuses(kind, code)
        for kind in ABOUT
        for code in (*CODES, STRANGE)
    },
    **{f"fails, {cause}": fails(cause) for cause in (*CAUSES, STRANGE) if cause not in FOR_ALL},
    "says goodbye": lambda done: m.Goodbye(reason="x"),
}


def once(make):
    """It is honest until it is asked for the fourth step; then it says this, once."""
    has_said = False

    def says(message, buffers):
        nonlocal has_said
        if has_said or not isinstance(message, m.Done) or message.step < 3:
            return [(message, buffers)]
        has_said = True
        return [(make(message), ())]

    return says


@pytest.mark.few(2)
@pytest.mark.parametrize("case", SAID)
def test_one_message_of_one_device_ends_no_training_that_others_can_go_on_with(home, case):
    run = deployed(home, protect=2)
    memory_of(home).take_over(B, once(SAID[case]))
    history = run.fit(make_data("mlp", 36), epochs=3).wait()
    assert len(history.recoveries) == 1
    check_learned(run, history)


@pytest.mark.few(5)
@pytest.mark.parametrize("case", SAID)
def test_nor_does_it_lose_a_request(home, case):
    _, model = make_model("mlp")
    plan = make_plan(model, ((A,), (4,)), ((B, C), (3, 1)), micro_batch=4, training=False)
    run, (x, _) = home.deploy(plan, model).wait(), make_data("mlp", 8)
    expected = run(x)
    memory_of(home).take_over(B, once(SAID[case]))
    for _ in range(8):
        assert torch.allclose(run(x), expected, atol=1e-6)


def mute(home, kind):
    """It answers, but this."""
    memory_of(home).take_over(
        B, lambda message, buffers: [] if isinstance(message, kind) else [(message, buffers)]
    )


def deploy(home, model):
    plan = make_plan(model, ((A,), (4,)), ((B,), (4,)), micro_batch=4, n_micro_batches=2)
    home.deploy(plan, model).wait()


def profile(home, model):
    home.profile(model, rows=(1,), repeats=1).wait()


@pytest.mark.parametrize("kind", [m.Prepared, m.Committed])
def test_a_device_that_lives_and_does_not_answer_is_given_up_by_name(home, kind):
    mute(home, kind)
    _, model = make_model("mlp")
    with pytest.raises(DeviceGone, match="local-2: it did not answer"):
        deploy(home, model)
    assert A in home.devices.ready


def test_a_device_that_is_not_measured_in_time_is_left_out_by_name(home):
    mute(home, m.Measured)
    _, model = make_model("mlp")
    with pytest.warns(UserWarning, match="local-2 is left out. local-2: it did not answer"):
        profile(home, model)
    assert A in home.devices.ready


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", [m.Done, m.Value])
@pytest.mark.parametrize("is_busy", [False, None], ids=["says that it is idle", "honest of that"])
def test_a_step_that_a_device_never_ends_is_computed_by_the_others(home, kind, is_busy):
    """Unless it claims to get on with it: it is believed."""
    run = deployed(home, protect=2)
    history = run.fit(make_data("mlp", 36)).wait()

    def says(message, buffers):
        if isinstance(message, m.Pong) and is_busy is not None:
            message = replace(message, busy=is_busy)
        return [] if isinstance(message, kind) else [(message, buffers)]

    memory_of(home).take_over(B, says)
    more = run.fit(make_data("mlp", 36), epochs=2).wait()
    assert B not in run.plan.devices
    check_learned(run, joined(history, more))


REFUSED = m.Refused(about=m.NUMBER_OF[m.Roster], code=m.RefusalCode.BUSY, text="x")


@pytest.mark.parametrize("said", [[], [(REFUSED, ())]], ids=["silent", "refuses"])
def test_who_will_not_hear_of_the_others_is_done_without(home, said):
    memory_of(home).take_over(
        B,
        lambda message, buffers: said if isinstance(message, m.RosterSet) else [(message, buffers)],
    )
    for name in (B, C):
        memory_of(home).kill(name)
        memory_of(home).restart(name)
    home.devices.join()
    assert home.devices.ready == (A, C)
    assert "Roster" in str(home.devices[B].error)


@pytest.mark.long
def test_who_does_not_answer_keeps_no_other_device_from_coming_back(home):
    mute(home, m.RosterSet)
    memory_of(home).kill(C)
    memory_of(home).restart(C)
    home.devices.join([C])
    assert C in home.devices.ready
