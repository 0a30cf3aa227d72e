"""The lab half of the serving bench: what is predicted and what agents play is the same."""

from dataclasses import replace

import pytest

from potluck.bench import serve_lab
from potluck.serve.baselines.schemes import OURS
from potluck.serve.scheduling.records import Frequency
from potluck.sessions.agent_specs import Spec
from potluck.testing.memory import memory_home

torch = pytest.importorskip("torch")
WORKLOAD = "latency, one processor"


def drawn(workload, duration_s, time_scale):
    models = serve_lab.models_of(workload)
    services = [serve_lab.service_of(model, time_scale, 0.001) for model in models]
    lasts_s = {model.name: serve_lab.played_s(model, time_scale) for model in models}
    return serve_lab.scenario(services, duration_s, time_scale, 1.2, 5, 0), lasts_s


def test_all_is_slower_by_one_factor():
    fast, slow = (drawn("mixed", 2.0 * scale, scale)[0] for scale in (1.0, 10.0))
    for one, other in zip(fast.services, slow.services, strict=True):
        assert other.slo.tolerance_s == pytest.approx(10 * one.slo.tolerance_s)
        if isinstance(one.slo, Frequency):
            assert other.slo.fps == pytest.approx(one.slo.fps / 10)
    assert slow.interval_s == pytest.approx(10 * fast.interval_s)
    assert len(slow.arrivals) == pytest.approx(len(fast.arrivals), rel=0.2)


def test_agents_answer_each_request_once_and_share_placement_and_arrivals():
    requests, lasts_s = drawn(WORKLOAD, 0.3, 1.0)
    names = [f"s{n}" for n in range(serve_lab.N_HOLDERS)]
    with memory_home([Spec(name=name, emulated=True) for name in names]) as home:
        agents = serve_lab.LabServers(home)
        played = serve_lab.play(WORKLOAD, OURS, requests, agents, lasts_s)
        agents.forget()
    for outcome in (played.predicted, played.measured):
        late = sum(tally.late for tally in outcome.tallies.values())
        ended = outcome.satisfied + late + sum(outcome.refused.values())
        assert ended == outcome.n_asked == len(requests.arrivals)
    assert played.predicted.n_replicas == played.measured.n_replicas > 0
    found = serve_lab.compared([played, replace(played, scheme="another")], 1.0)
    assert found["lab_ours_over_others_worst"] == 1.0
    assert found["lab_prediction_error_max_frac"] == played.error_frac
