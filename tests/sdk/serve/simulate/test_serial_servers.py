"""One processor per server, which computes in turn: traces by hand, frames, nothing lost."""

from random import Random

import pytest
from tests.sdk.serve.serving import server, service, stream_service
from tests.sdk.serve.simulate.test_simulation import scenario

from potluck.serve.baselines.schemes import OURS, SCHEMES
from potluck.serve.scheduling.placement import Placement
from potluck.serve.scheduling.records import Latency, Replica, Request
from potluck.serve.simulate.engine import simulate
from potluck.serve.simulate.serial_servers import SerialServing


class Told(SerialServing):
    """Tells when batches end."""

    def __init__(self, *given):
        self.ended = []
        super().__init__(*given)

    def batch_done(self, index, start, now_s):
        self.ended.append((start.pool[0], len(start.requests), round(now_s, 6)))
        super().batch_done(index, start, now_s)


def outcome_of(found, scheme=OURS, placement=None):
    playing = Told(found, scheme, None, placement)
    return playing.ended, playing.run()


def of(name, **changes):
    return service(name, Latency(1.0), degrees=(1, 2, 4), **changes)


def test_by_hand_batches_of_several_services_come_one_after_the_other():
    """0.02 s for one row, 0.03 s for two, whatever is placed beside."""
    services = [of("a"), of("b")]
    requests = [("s", Request(n, name, 0.0, 1.0)) for n, name in enumerate("abab")]
    ended, outcome = outcome_of(scenario(requests, services, [server("s")]))
    # the first of each go alone; the second of each come while those are computed
    assert ended == [("a", 1, 0.02), ("b", 1, 0.04), ("a", 1, 0.06), ("b", 1, 0.08)]
    assert outcome.satisfied == 4


def test_by_hand_rows_that_came_meanwhile_are_computed_together():
    requests = [
        ("s", Request(n, "a", at_s, at_s + 1.0)) for n, at_s in enumerate((0.0, 0.01, 0.015))
    ]
    ended, outcome = outcome_of(scenario(requests, [service("a")], [server("s")]))
    assert ended == [("a", 1, 0.02), ("a", 2, 0.05)]
    assert outcome.satisfied == 3


def test_by_hand_a_full_batch_does_not_follow_another_one_of_its_service():
    """0.2 s each, and 0.02 s for one that comes meanwhile."""
    long = service("long", Latency(0.75), fixed_s=0.0, item_s=0.2)
    urgent = service("urgent", Latency(0.3))
    requests = [("s", Request(n, "long", 0.0, 0.75)) for n in range(2)]
    requests.append(("s", Request(2, "urgent", 0.1, 0.4)))
    both = tuple(
        Replica(service=name, kind="gpu", processors=(("s", 0),)) for name in ("long", "urgent")
    )
    placement = Placement(replicas=both, satisfied_per_s=3.0)
    found = scenario(requests, [long, urgent], [server("s")])
    ended, outcome = outcome_of(found, placement=placement)
    assert ended == [("long", 1, 0.2), ("urgent", 1, 0.22), ("long", 1, 0.42)]
    assert outcome.satisfied == 3


@pytest.mark.parametrize(("fps", "least", "most"), [(20.0, 60, 60), (100.0, 25, 45)])
def test_frames_come_one_by_one_and_those_in_time_count(fps, least, most):
    """A replica does some 40 frames per second, and more in batches."""
    cameras = stream_service("cameras", fps=fps, tolerance_s=0.05, item_s=0.02, fixed_s=0.005)
    stream = Request(0, "cameras", 0.0, 60 / fps, fps=fps, n_frames=60)
    found = scenario([("s", stream)], [cameras], [server("s")])
    outcome = SerialServing(found, OURS).run()
    assert outcome.n_asked == 60
    assert least <= outcome.satisfied <= most
    fluid = simulate(found, OURS).satisfied
    assert outcome.satisfied == pytest.approx(fluid, abs=12)


@pytest.mark.few(9)
@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
@pytest.mark.parametrize("seed", range(3))
def test_each_request_ends_once(scheme, seed):
    rng = Random(seed)
    services = [of("a"), of("b", item_s=0.03), of("c", fixed_s=0.05)]
    requests = [
        (rng.choice("st"), Request(n, rng.choice("abc"), at_s, at_s + 0.3))
        for n, at_s in enumerate(sorted(rng.uniform(0, 2) for _ in range(200)))
    ]
    found = scenario(requests, services, [server("s"), server("t")], duration_s=2.0)
    outcome = SerialServing(found, scheme).run()
    late = sum(tally.late for tally in outcome.tallies.values())
    assert outcome.satisfied + late + sum(outcome.refused.values()) == outcome.n_asked == 200


def test_a_stream_that_is_refused_elsewhere_is_refused_for_good():
    """Nobody has room: its frames are not sent after it."""
    cameras = stream_service("cameras", fps=30.0, tolerance_s=0.1, item_s=0.02, fixed_s=0.005)
    streams = [("t", Request(n, "cameras", 0.01 * n, 9.0, fps=30.0, n_frames=30)) for n in range(6)]
    found = scenario(streams, [cameras], [server("s"), server("t", n_processors=0)])
    outcome = SerialServing(found, OURS).run()
    assert 30 <= outcome.satisfied < 120
    assert outcome.n_asked == 180
