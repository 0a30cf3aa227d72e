"""Which device has which service: nobody is left out while there is room."""

import pytest

from potluck.errors import Infeasible
from potluck.serve.runtime.device_placement import ServiceDemand, place_all, place_divided
from potluck.serve.runtime.measure import MeasuredService
from potluck.serve.scheduling.records import BatchTimes, Latency

MIB = 2**20
NAMES = ("a", "b", "c")


def measured(seconds=0.1, n_devices=1):
    times = BatchTimes(items=(1, 2, 4), seconds=(seconds,) * 3)
    return MeasuredService(
        alone=times, in_pairs=times, memory_bytes=10 * MIB, item_bytes=0, n_devices=n_devices
    )


def placed(memory, without=(), **per_s):
    wanted = [
        ServiceDemand(name=name, slo=Latency(1.0), per_s=per_s.get(name, 0.0)) for name in NAMES
    ]
    times = {name: dict.fromkeys(memory, measured()) for name in NAMES}
    found = place_all(wanted, times, memory, without)
    return {name: set(place.n_replicas) for (name, _), place in found.items()}


@pytest.mark.parametrize("hot", NAMES)
def test_who_is_asked_for_most_leaves_room_for_the_others(hot):
    places = placed({"one": 25 * MIB, "two": 25 * MIB}, **{hot: 1000.0})
    assert set(places) == set(NAMES)


def test_a_service_stays_away_from_a_device_that_had_no_room_for_it():
    places = placed({"one": 25 * MIB, "two": 25 * MIB}, without={("c", "one")}, a=1000.0)
    assert places["c"] == {"two"}


def test_where_there_is_room_for_fewer_than_all_as_many_as_fit_are_placed():
    assert len(placed({"one": 25 * MIB})) == 2


def test_devices_that_share_a_model_are_a_place_of_several_processors():
    wanted = ServiceDemand(name="large", slo=Latency(1.0))
    (key, place) = next(iter(place_divided(wanted, "a+b", measured(n_devices=2)).items()))
    assert key == ("large", "a+b")
    assert place.allocation.category.takes_several
    assert place.allocation.variant.across


def test_a_device_with_less_memory_keeps_a_service_from_no_other():
    wanted = [ServiceDemand(name="a", slo=Latency(1.0))]
    memory = {"one": 5 * MIB, "two": 25 * MIB}
    ((_, place),) = place_all(wanted, {"a": dict.fromkeys(memory, measured())}, memory).items()
    assert set(place.n_replicas) == {"two"}


def test_the_best_possible_limit_has_time_for_the_way_and_the_entrance():
    times, memory = measured(seconds=0.1), {"one": 25 * MIB}
    tight = ServiceDemand(name="a", slo=Latency(0.01))
    with pytest.raises(Infeasible, match=r"Allow \S+ s, which nearly all answers hold") as caught:
        place_all([tight], {"a": {"one": times}}, memory)
    assert caught.value.facts["best_s"] == pytest.approx(0.1 + times.beyond_s)
    assert times.beyond_s > 0
