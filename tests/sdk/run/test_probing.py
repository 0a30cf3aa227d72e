"""Those that a run does not use are asked how fast they are now, where they can be."""

from dataclasses import replace
from types import MappingProxyType

import pytest
from tests.sdk.run.test_switching import A, B, C, make_model, plan_of

from potluck.adapt.conditions import DEVICE, MEDIUM, Conditions
from potluck.handle import Task
from potluck.planning.scenario import only
from potluck.run.probing import Prober
from potluck.sessions.agent_specs import Spec
from potluck.testing.faults import memory_of
from potluck.testing.internals import engine_of
from potluck.testing.memory import memory_home

torch = pytest.importorskip("torch")
RATE = "8 Mbit/s"
NOBODY_CHANGED = Conditions(factors=MappingProxyType({}))


@pytest.fixture(params=["measured", "estimated"])
def probed(request):
    """A home, its run on one device, and what asks the others."""
    specs = [Spec(name=name, link_rate=RATE) for name in (A, B, C)]
    with memory_home(specs) as home:
        model = make_model()
        profile = home.profile(model, rows=(1, 4), repeats=5).wait()
        run = home.deploy(plan_of(model, "a"), model, profile=profile).wait()
        engine = engine_of(run)
        prober = Prober(engine, Task())
        problem = engine.compiler.problem(engine.compiled_plan)
        costs = {
            n: tuple(replace(c, source=request.param) for c in cs)
            for n, cs in problem.costs.items()
        }
        problem = replace(problem, costs=costs)

        def slowness(*things, known=NOBODY_CHANGED):
            return prober.slowness(things, run.plan, problem, known)

        yield home, problem, slowness, request.param == "estimated"


def limit(problem, source, target):
    """The medium that limits what goes from one to the other."""
    media = {m.name: m.capacity_bytes_per_s for m in problem.network.media}
    path = problem.network.paths[source, target]
    return MEDIUM, min(path.media, key=lambda crossed: media[crossed[0]] / crossed[1])[0]


@pytest.mark.long
def test_a_loaded_device_says_so_where_its_profile_is_no_estimate(probed):
    home, _, slowness, estimated = probed
    memory_of(home).load(B, 100.0)
    found = slowness((DEVICE, B), (DEVICE, C))
    if estimated:
        assert found == {}
    else:  # a layer takes microseconds, and other tests run beside it
        assert found[DEVICE, B] > 5 * found[DEVICE, C]


@pytest.mark.few(1)
def test_a_slow_link_says_so_whatever_was_known_of_it(probed):
    home, problem, slowness, _ = probed
    thing = limit(problem, B, A)
    assert slowness(thing)[thing] == pytest.approx(1.0, abs=0.2)
    memory_of(home).slow(B, 1e5)
    known = Conditions(factors={thing: 3.0})
    for each in (slowness(thing), slowness(thing, known=known)):
        assert each[thing] == pytest.approx(10.0, rel=0.2)


@pytest.mark.long
def test_who_is_gone_says_nothing_and_the_others_do(probed):
    home, problem, slowness, estimated = probed
    memory_of(home).kill(B)
    thing = limit(problem, C, A)
    found = slowness((DEVICE, B), limit(only(problem, [A, B]), B, A), thing, (DEVICE, C))
    assert set(found) == ({thing} if estimated else {thing, (DEVICE, C)})
