"""Homes and runs as seen, made by hand."""

from potluck.display.cockpit.observation import CockpitObservation, RunObservation
from potluck.errors import DeviceGone
from potluck.records import (
    HOME,
    Device,
    Layer,
    LayerCost,
    Medium,
    Network,
    Path,
    Plan,
    Problem,
    Stage,
    Training,
)
from potluck.run.history import History
from potluck.sessions.events import Session
from potluck.sessions.members import Member
from potluck_wire.messages import Reading

N_LAYERS = 4


def member(name, *, key="k", here=True, watts=10.0, at_s=1.0, error=None):
    session = None
    if here:
        capability = {"memory_bytes": 1 << 30}
        session = Session(device=name, name=name, version=(1, 8), capability=capability)
    reading = Reading(at_s=at_s, watts=watts, joules=1.0) if here else None
    return Member(name=name, key=key, session=session, reading=reading, error=error)


def gone(name):
    return member(name, here=False, error=DeviceGone("no sign of life.", device=name))


def problem(*names):
    ends = (*names, HOME)
    network = Network(
        media=(Medium(name="air", capacity_bytes_per_s=1e6),),
        paths={(a, b): Path(media=(("air", 2),)) for a in ends for b in ends if a != b},
    )
    layers = tuple(
        Layer(name=f"layer {i}", parameter_bytes=1000, output_bytes=40, gradient_bytes=40)
        for i in range(N_LAYERS)
    )
    cost = LayerCost(rows=(1, 8), forward_s=(0.01, 0.02), backward_s=(0.02, 0.04))
    return Problem(
        model="net",
        devices=tuple(
            Device(name=name, memory_bytes=1 << 30, idle_w=1.0, busy_w=9.0) for name in names
        ),
        network=network,
        layers=layers,
        costs=dict.fromkeys(names, (cost,) * N_LAYERS),
        workload=Training(batch=16, micro_batch=8),
    )


def plan(*names, planner="potluck", latency_s=0.5, energy_j=4.0):
    bounds = [round(i * N_LAYERS / len(names)) for i in range(len(names) + 1)]
    stages = tuple(
        Stage(start=a, stop=b, devices=(name,), shares=(8,))
        for name, a, b in zip(names, bounds, bounds[1:], strict=False)
    )
    return Plan(
        planner=planner,
        model="net",
        stages=stages,
        micro_batch=8,
        n_micro_batches=2,
        latency_s=latency_s,
        energy_j=energy_j,
        energy_source="assumed",
        peak_bytes=dict.fromkeys(names, 5000),
    )


def running(at_work, *, steps=3, step_s=0.5, number=1, ended="", **more):
    history = History(losses=(1.0,) * steps, rows=(16,) * steps, step_s=(step_s,) * steps)
    return RunObservation(
        number=number,
        plan=at_work,
        n_done=steps,
        history=more.pop("history", history),
        ended=ended,
        is_training=not ended,
        problem=problem("a", "b"),
        used_bytes=dict.fromkeys(at_work.devices, 4000),
        step_s=(step_s,) * min(steps, 64),
        last_s=0.1,
        **more,
    )


def seen(*members, run=None, **more):
    network = run.problem.network if run is not None else None
    return CockpitObservation(members=members, run=run, network=network, **more)
