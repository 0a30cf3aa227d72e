"""The allocator's settings, by hand and against every setting there is."""

from random import Random

import pytest
from tests.sdk.serve.serving import GPU, server, service, stream_service, times

from potluck.errors import Infeasible, PlanError
from potluck.records import Plan, Stage
from potluck.serve.scheduling.allocate import (
    NEARLY,
    Operators,
    allocate,
    allocate_all,
    frames_at_once,
    n_groups,
    variant_of_plans,
)
from potluck.serve.scheduling.records import (
    BatchTimes,
    Category,
    Frequency,
    Latency,
    Processor,
    Server,
    ServiceSpec,
    Variant,
)


@pytest.mark.parametrize(
    ("fps", "group_fps", "groups"),
    [(60, 24, 3), (60, 60, 1), (60, 30, 2), (60, 61, 1), (120, 49, 3), (1, 100, 1)],
)
def test_groups_of_equation_4(fps, group_fps, groups):
    assert n_groups(fps, group_fps) == groups


def test_frames_at_once_leave_time_for_two_batches():
    # 0.1 s of tolerance less twice 0.02 s is 3.6 periods of 60 fps: four frames
    assert frames_at_once(Frequency(60, 0.1), 8, 0.02) == 4
    assert frames_at_once(Frequency(60, 0.1), 2, 0.02) == 2
    assert frames_at_once(Frequency(60, 0.01), 8, 0.02) == 1


def test_the_batch_leaves_time_for_the_one_under_way():
    # 0.01 + 0.01 n: twice a batch of 32 is 0.66 s, of 64 1.3 s
    found = allocate(service(slo=Latency(1.0)), GPU)
    assert (found.batch, found.category) == (32, Category.LATENCY_ONE)
    assert found.rate_per_s == pytest.approx(32 / 0.33)


def test_inter_request_count_of_equation_5():
    found = allocate(stream_service(fps=60, tolerance_s=0.2, fixed_s=0.01, item_s=0.005), GPU)
    assert found.batch == 16  # 0.09 s; 32 would take 0.17 s
    assert found.multi_frame == 2  # 0.02 s are left, which is one period more
    assert found.streams == 8


def test_replicas_are_used_where_they_gain():
    # two side by side take 1.5 times as long: a third more in all
    variant = Variant(
        kind="gpu",
        memory_bytes=100,
        times={1: times(0.1, 0.01, 8), 2: times(0.15, 0.015, 8), 16: times(4.0, 1.0, 8)},
    )
    found = allocate(ServiceSpec(name="s", slo=Latency(1.0), variants=(variant,)), GPU)
    assert (found.replicas, found.share_frac) == (2, 0.5)


def test_memory_bounds_the_batch():
    found = allocate(service(memory_bytes=200, item_bytes=100), GPU)
    assert (found.batch, found.memory_bytes) == (8, 1000)


def test_one_processor_is_preferred_to_several():
    one = Variant(kind="gpu", memory_bytes=100, times={1: times(0.2, 0.0)})
    two = Variant(kind="gpu", memory_bytes=50, n_processors=2, times={1: times(0.01, 0.0)})
    loose = ServiceSpec(name="s", slo=Latency(1.0), variants=(two, one))
    tight = ServiceSpec(name="s", slo=Latency(0.1), variants=(two, one))
    assert allocate(loose, GPU).category is Category.LATENCY_ONE
    assert allocate(tight, GPU).category is Category.LATENCY_SEVERAL
    with pytest.raises(Infeasible):
        allocate(tight, GPU, Operators(model_parallel=False))


def test_a_stream_that_one_processor_cannot_keep_up_with_takes_several():
    slow = stream_service(fps=60, tolerance_s=0.2, fixed_s=0.0, item_s=0.04)
    found = allocate(slow, GPU)
    assert (found.category, found.groups) == (Category.FREQUENCY_SEVERAL, 3)


def test_says_the_best_possible():
    with pytest.raises(Infeasible, match=r"0\.02 s on gpu at best, its limit is 0\.01 s") as caught:
        allocate(service(slo=Latency(0.01)), GPU)
    assert caught.value.facts["best_s"] == pytest.approx(0.02)


def test_says_what_memory_is_needed_and_there():
    with pytest.raises(Infeasible, match=r"needs 2000 bytes on each .* which has 1000"):
        allocate(service(memory_bytes=2000), GPU)


def test_what_runs_nowhere_is_an_error_and_what_runs_somewhere_is_not():
    lone = Server(name="b", processors=(Processor(kind="cpu", memory_bytes=1000),))
    found = allocate_all([service()], [server("a"), lone])
    assert [*found] == [("birds", "gpu")]
    with pytest.raises(Infeasible):
        allocate_all([service()], [lone])


@pytest.mark.parametrize("seed", range(30))
def test_no_setting_that_holds_the_limit_serves_much_more(seed):
    """Random times, memory and limits: the oracle looks at every setting by its definition."""
    rng = Random(seed)
    degrees = (1, 2, 4, 8, 16)
    measured = {
        n: BatchTimes(
            items=(sizes := tuple(2**p for p in range(rng.randint(1, 10)))),
            seconds=tuple(sorted(rng.uniform(0.001, 1.0) for _ in sizes)),
        )
        for n in degrees
    }
    variant = Variant(
        kind="gpu", memory_bytes=rng.randint(1, 400), item_bytes=rng.randint(0, 9), times=measured
    )
    slo = Latency(rng.uniform(0.01, 1.5))
    each = ServiceSpec(name="s", slo=slo, variants=(variant,))
    rates = [
        (2 * measured[n].at(b) <= slo.limit_s, n * b / measured[n].at(b))
        for n in degrees
        for b in measured[n].items
        if variant.memory_bytes + b * variant.item_bytes <= GPU.memory_bytes
        and measured[n].at(b) * (1 if b == 1 else 2) <= slo.limit_s
    ]
    if not rates:
        with pytest.raises(Infeasible):
            allocate(each, GPU)
        return
    in_time = [rate for leaves_time, rate in rates if leaves_time == max(rates)[0]]
    for per_s in (0.0, rng.uniform(0.1, 100)):
        found = allocate(each, GPU, per_s=per_s)
        assert found.replicas * found.rate_per_s >= NEARLY * max(in_time) * (1 - 1e-9)
        assert (2 * found.batch_s[found.batch] <= slo.limit_s) == max(rates)[0]


def test_parts_suit_the_demand():
    """No loss side by side: half of the demand asks for an eighth, all of it for a whole."""
    each = service(degrees=(1, 2, 4, 8, 16), fixed_s=0.0, slo=Latency(20.0))
    assert [allocate(each, GPU, per_s=per_s).replicas for per_s in (25, 100, 200)] == [8, 2, 1]


def test_a_variant_comes_from_plans_of_the_planners():
    def plan(rows, seconds, devices=("a", "b")):
        stages = tuple(
            Stage(start=i, stop=i + 1, devices=(name,), shares=(rows,))
            for i, name in enumerate(devices)
        )
        return Plan(
            planner="potluck",
            model="m",
            stages=stages,
            micro_batch=rows,
            training=False,
            latency_s=seconds,
            peak_bytes=dict.fromkeys(devices, 300),
        )

    found = variant_of_plans([plan(1, 0.1), plan(4, 0.3)], "gpu", across=True)
    assert (found.n_processors, found.memory_bytes) == (2, 300)
    assert found.times[1].at(2) == pytest.approx(0.1 + 0.2 / 3)
    with pytest.raises(PlanError, match="not one variant"):
        variant_of_plans([plan(1, 0.1), plan(1, 0.1, ("a",))], "gpu", across=False)
    with pytest.raises(PlanError, match="latency"):
        variant_of_plans([plan(1, None)], "gpu", across=False)
