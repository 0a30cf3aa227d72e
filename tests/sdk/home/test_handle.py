"""A handle shows progress, resolves where it is used, raises the work's error there, and can be
cancelled.
"""

import threading
from concurrent.futures import CancelledError, Future

import pytest
from tests.timeouts import TIMEOUT_S

from potluck import display_hooks, handle
from potluck.errors import UserError
from potluck.handle import Handle, resolved


@pytest.fixture(autouse=True)
def silent():
    handle.show_with(None)
    yield
    handle.show_with(display_hooks.watch)


class Result(list):
    colour = "red"

    def __call__(self, x):
        return x + 1


def test_every_use_waits_for_the_result():
    made = Handle(lambda task: Result([1, 2]))
    assert (made.colour, made[1], list(made), len(made), made(1)) == ("red", 2, [1, 2], 2, 2)
    assert resolved(made) == resolved([1, 2])
    assert repr(made) == "[1, 2]"
    assert {"colour", "wait"} <= {*dir(made)}  # what a notebook completes


def test_it_tells_how_far_it_is():
    go, seen = threading.Event(), []

    def work(task):
        go.wait(TIMEOUT_S)
        task.update(0.5, "half")
        task.update(7.0, "more than all")
        return 1

    made = Handle(work, "counting")
    made.listen(lambda frac, text: seen.append((frac, text)))
    assert repr(made) == "<counting: 0%>"
    assert not made.done
    go.set()
    assert made.wait() == 1
    assert seen == [(0.5, "half"), (1.0, "more than all"), (1.0, "more than all")]


def test_the_works_error_is_raised_at_use():
    made = Handle(lambda task: 1 / 0, "dividing")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            made.wait()
    with pytest.raises(ZeroDivisionError):
        _ = made.real
    assert repr(made) == "<dividing: ZeroDivisionError: division by zero>"


def test_notebooks_that_probe_private_names_do_not_wait():
    go = threading.Event()
    made = Handle(lambda task: go.wait(TIMEOUT_S))
    assert not hasattr(made, "_repr_png_")
    assert "0 %" in made._repr_html_()
    go.set()
    made.wait()


def test_a_handle_shows_its_result_or_what_went_wrong():
    class Shown:
        def _repr_html_(self):
            return "<b>result</b>"

    made = Handle(lambda task: Shown(), "making")
    made.wait()
    assert made._repr_html_() == "<b>result</b>"
    failed = Handle(lambda task: {}["a < b"], "looking")
    with pytest.raises(KeyError):
        failed.wait()
    assert "looking: KeyError: &#x27;a &lt; b&#x27;" in failed._repr_html_()


def test_a_handle_at_the_end_of_a_cell_is_replaced_by_its_result(monkeypatch):
    display = pytest.importorskip("IPython.display")
    places = []

    class Place:
        def __init__(self, shown):
            self.shown = [shown]

        def update(self, shown, raw):
            assert raw
            self.shown.append(shown)

    def show(shown, raw, display_id):
        assert raw
        assert display_id
        places.append(Place(shown))
        return places[-1]

    monkeypatch.setattr(display, "display", show)
    go, heard = threading.Event(), threading.Event()
    made = Handle(lambda task: go.wait(TIMEOUT_S), "waiting")
    made._ipython_display_()
    made.on_done(lambda handle: heard.set())
    go.set()
    assert heard.wait(TIMEOUT_S)
    texts = [shown["text/plain"] for shown in places[0].shown]
    assert (texts[0], texts[-1]) == ("<waiting: 0%>", "True")
    assert "0 %" in places[0].shown[0]["text/html"]
    assert "text/html" not in places[0].shown[-1]


def test_cancelling_interrupts_a_wait_inside():
    inner, entered = Future(), threading.Event()

    def work(task):
        entered.set()
        return task.wait(inner)

    made = Handle(work, "waiting")
    entered.wait(TIMEOUT_S)
    made.cancel()
    with pytest.raises(CancelledError, match=r"waiting was cancelled"):
        made.wait()
    assert repr(made) == "<waiting: cancelled>"


def test_cancelling_stops_at_the_next_check():
    go = threading.Event()

    def work(task):
        go.wait(TIMEOUT_S)
        task.check()

    made = Handle(work)
    made.cancel()
    go.set()
    with pytest.raises(CancelledError):
        made.wait()


def test_a_timeout_leaves_the_work_going():
    go = threading.Event()
    made = Handle(lambda task: go.wait(TIMEOUT_S))
    with pytest.raises(TimeoutError):
        made.wait(0.01)
    go.set()
    assert made.wait() is True


def test_a_broken_display_does_not_stop_the_work():
    def attach(_made):
        raise RuntimeError("no screen")

    handle.show_with(attach)
    made = Handle(lambda task: task.update(0.1) or 3)
    made.listen(lambda frac, text: 1 / 0)
    assert made.wait() == 3


def test_ctrl_c_while_waiting_cancels_the_work(monkeypatch):
    stopped, go = threading.Event(), threading.Event()

    def work(task):
        go.wait(TIMEOUT_S)
        try:
            task.check()
        finally:
            stopped.set()

    made = Handle(work)

    def interrupted(future, timeout=None):
        go.set()
        raise KeyboardInterrupt

    monkeypatch.setattr("potluck.handle.Future.result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        made.wait()
    assert stopped.is_set()


def test_work_that_lacks_a_package_says_how_to_install_it():
    def work(task):
        raise ModuleNotFoundError("No module named 'scipy.optimize'", name="scipy.optimize")

    with pytest.raises(UserError, match=r'scipy.*pip install "\.\[sdk\]"'):
        Handle(work).wait()


def outcome_of(call):
    """What a call gives, or the error that it raises."""
    try:
        return call()
    except UserError as error:
        return error


def test_work_that_waits_for_itself_is_told_so():
    outcomes, going = [], threading.Event()

    def work(task):
        going.wait(TIMEOUT_S)
        outcomes.append(outcome_of(made.wait))
        outcomes.append(outcome_of(lambda: made.colour))

    made = Handle(work, "counting")
    going.set()
    made.wait(TIMEOUT_S)
    assert all(isinstance(error, UserError) for error in outcomes)
    assert "counting would wait for itself" in str(outcomes[0])
    assert "after the work has ended" in str(outcomes[0])


def test_work_that_waits_for_what_comes_after_it_is_told_so():
    outcomes, going = [], threading.Event()

    def work(task):
        going.wait(TIMEOUT_S)
        second = Handle(lambda task: 2, "second", after=first)
        third = Handle(lambda task: 3, "third", after=second)
        outcomes.extend([outcome_of(third.wait), second, third])

    first = Handle(work, "first")
    going.set()
    first.wait(TIMEOUT_S)
    error, second, third = outcomes
    assert "third would wait for itself" in str(error)
    assert (second.wait(TIMEOUT_S), third.wait(TIMEOUT_S)) == (2, 3)


def test_one_of_two_that_wait_for_each_other_is_told_so():
    both, going = [], threading.Event()

    def work(other):
        going.wait(TIMEOUT_S)
        return outcome_of(both[other].wait)

    both += [Handle(lambda task, i=i: work(1 - i), f"work {i}") for i in range(2)]
    going.set()
    results = [made.wait(TIMEOUT_S) for made in both]
    assert sum(isinstance(result, UserError) for result in results) >= 1


def test_work_may_wait_for_other_work_and_what_follows_it_for_more():
    heard, inner = Future(), Handle(lambda task: 1, "inner")
    made = Handle(lambda task: inner.wait() + 1, "outer")
    made.on_done(lambda done: heard.set_result(Handle(lambda task: 3, after=done).wait()))
    assert made.wait(TIMEOUT_S) == 2
    assert heard.result(TIMEOUT_S) == 3


def test_what_waits_for_its_turn_can_be_cancelled():
    go = threading.Event()
    first = Handle(lambda task: go.wait(TIMEOUT_S), "first")
    second = Handle(lambda task: 2, "second", after=first)
    second.cancel()
    with pytest.raises(CancelledError):
        second.wait(TIMEOUT_S)
    go.set()
    assert first.wait(TIMEOUT_S)
