"""Requests for services between devices: what is served, handed on and answered."""

import pytest
from tests.agent.core.core_house import LIMIT_S, RUN_S, SERVICE, House, floats, may

from potluck_agent.core.events import MustLeave, WorkerDied
from potluck_agent.core.resource_usage import ResourceUsage
from potluck_wire import messages as m


def full(house, name, n_asks=10):
    """A device whose worker answers nothing, with as many requests as it takes in time."""
    house.workers[name].answers = False
    for _ in range(n_asks):
        house.ask(name)


def test_an_idle_device_answers_by_itself():
    house = House().grant_all()
    ended, output = house.answer(house.ask("a", 1.0, 2.0))
    assert (ended.code, ended.path, output) == ("", ("a",), floats(2.0, 4.0))
    assert house.workers["b"].n_computed == 0


def test_a_busy_device_hands_on_and_the_answer_tells_where_it_was():
    house = House().grant_all()
    full(house, "a")
    ended, output = house.answer(house.ask("a", 3.0, 4.0))
    assert (ended.code, ended.path, output) == ("", ("a", "b"), floats(6.0, 8.0))
    assert len(ended.hops_s) == 2
    assert house.workers["b"].n_computed == 1


def test_hop_times_are_those_from_having_it_to_its_end():
    house = House().grant_all()
    full(house, "a")
    house.workers["b"].answers = False
    held = []
    house.lost = lambda sender, to, message: (
        isinstance(message, m.Value) and to == "b" and not held.append((sender, to, message))
    )
    number = house.ask("a", 1.0, 1.0, left_s=0.9)
    house.lost = lambda *_: False
    house.workers["b"].answers = True
    house.tick(0.25)
    (sender, to, value), *_ = held
    house.post.append((sender, to, value, (floats(1.0, 1.0),)))
    house.deliver()
    ended, _ = house.answer(number)
    assert ended.hops_s == pytest.approx((0.25, 0.25))


def test_an_entrance_without_the_model_is_none():
    house = House("abc", serves="ab")
    answer = house.grant("c", may("a"))
    assert (answer.code, answer.about) == (m.RefusalCode.UNKNOWN_RUN, 28)


def test_a_request_goes_on_until_somebody_has_time():
    house = House("abc").grant_all()
    full(house, "a")
    full(house, "b")
    # a has not heard yet that b is full, and b knows of c alone
    house.grant("a", may("b"), may("c", hands_on=False))
    ended, output = house.answer(house.ask("a", 5.0, 6.0))
    assert (ended.code, ended.path, output) == ("", ("a", "b", "c"), floats(10.0, 12.0))


def test_where_nobody_has_time_it_is_refused_and_nothing_waits():
    house = House().grant_all()
    full(house, "a")
    full(house, "b")
    n_computed = house.n_computed
    ended, output = house.answer(house.ask("a"))
    assert (ended.code, output) == (m.RefusalCode.INSUFFICIENT, None)
    assert house.n_computed == n_computed


def test_nobody_is_handed_what_was_not_heard_of_for_long():
    house = House().grant_all()
    full(house, "a")
    house.lost = lambda sender, to, message: isinstance(message, m.Standing)
    for _ in range(6):
        house.tick(1.0)
    full(house, "a")
    ended, _ = house.answer(house.ask("a"))
    assert ended.code == m.RefusalCode.INSUFFICIENT


def test_it_is_handed_on_by_idle_goodput():
    house = House("abc").grant_all()
    for _ in range(5):  # of b, a part of what is possible was used, by the notebook's own steps
        house.step("b")
        house.tick(RUN_S)
    house.tick(0.75)
    statuses = [each for s, _, each in house.said if s == "b" and isinstance(each, m.Standing)]
    assert statuses[-1].idle_per_s == pytest.approx((1 - 0.5 / 1.25) / RUN_S)
    full(house, "a")
    tried = []
    house.lost = lambda sender, to, message: isinstance(message, m.Ask) and not tried.append(to)
    for _ in range(120):
        house.ask("a")
        house.tick(LIMIT_S / 200)
    assert set(tried) == {"b", "c"}
    assert tried.count("c") > tried.count("b")


def test_what_is_late_ends_and_leaves_nothing():
    house = House().grant_all()
    full(house, "a")
    house.lost = lambda sender, to, message: isinstance(message, m.Ask | m.Value)
    number = house.ask("a")
    house.lost = lambda *_: False
    house.tick(LIMIT_S)
    ended, output = house.answer(number)
    assert (ended.code, output) == (m.RefusalCode.LATE, None)
    assert house.cores["b"].held == ResourceUsage()
    assert house.cores["a"].held.n_asks == 0


def test_time_that_is_over_is_said_at_once():
    house = House().grant_all()
    ended, _ = house.answer(house.ask("a", left_s=0.0))
    assert ended.code in (m.RefusalCode.LATE, m.RefusalCode.INSUFFICIENT)
    assert house.n_computed == 0


def test_no_request_has_more_time_than_its_service():
    house = House().grant_all()
    house.workers["a"].answers = False
    number = house.ask("a", left_s=1000.0)
    house.tick(LIMIT_S)
    assert house.answer(number)[0].code == m.RefusalCode.LATE


@pytest.mark.parametrize("side", ["asks", "serves"])
def test_a_new_connection_ends_what_is_under_way_and_nothing_else(side):
    house = House().grant_all()
    full(house, "a", 9)
    own = house.ask("a")
    house.workers["b"].answers = False
    number = house.ask("a")
    assert house.cores["b"].held.n_asks == 1
    house.reset(*(("a", "b") if side == "asks" else ("b", "a")))
    assert house.answer(number)[0].code == m.FailureCause.PEER_LOST
    house.tick(1.0)
    assert house.cores["b"].held.n_asks == 0
    assert house.answer(own)[0].code == m.RefusalCode.LATE  # its own worker says nothing


def test_it_goes_on_after_a_new_connection():
    house = House().grant_all()
    house.reset("a", "b")
    house.reset("b", "a")
    house.tick(1.0)
    full(house, "a")
    assert house.answer(house.ask("a"))[0].path == ("a", "b")


def test_a_worker_that_dies_ends_requests_by_name():
    house = House().grant_all()
    house.workers["a"].answers = False
    number = house.ask("a")
    house.happen("a", WorkerDied(m.FailureCause.CRASHED, "SIGSEGV"))
    assert house.answer(number)[0].code == m.FailureCause.CRASHED
    assert house.answer(house.ask("a"))[0].code == m.RefusalCode.UNKNOWN_RUN


def test_a_device_that_leaves_takes_no_more():
    house = House().grant_all()
    house.happen("b", MustLeave(reason="the battery", within_s=60.0))
    full(house, "a")
    assert house.answer(house.ask("a"))[0].code == m.RefusalCode.LEAVING


def test_the_notebook_s_own_steps_go_on_beside_requests():
    house = House().grant_all()
    house.tell("a", m.Execute(run="r-a", epoch=0, program="p", step=0))
    number = house.ask("a", 1.0, 1.0)
    value = house.value(0, run="r-a", program="p", step=0)
    house.tell("a", value, floats(4.0, 5.0))
    answers = [b[0] for _, msg, b in house.home if isinstance(msg, m.Value) and msg.run]
    assert answers == [floats(8.0, 10.0)]
    assert house.answer(number)[1] == floats(2.0, 2.0)
    assert any(isinstance(message, m.Done) for _, message, _ in house.home)


def test_standing_tells_how_busy_a_service_is():
    house = House().grant_all()
    full(house, "b", 3)
    house.tick(1.0)
    statuses = [each for _, to, each in house.said if to == "a" and isinstance(each, m.Standing)]
    assert statuses[-1].service == SERVICE
    assert statuses[-1].capacity_per_s == pytest.approx(1 / RUN_S)
