"""A Trace as Chrome trace JSON, for https://ui.perfetto.dev (files stay in the browser).

One process per device, one thread per lane; what overlaps in a lane goes to a second thread of it,
because slices of one thread may nest but never overlap. Arrows (flow events) join each send with
its receive; a counter shows watts. Predicted and measured traces stand in one file as separate
groups of processes. Pure, but for `save`.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from potluck.display.timeline import devices, kind
from potluck.documents import write_text
from potluck.records import Device, Event, Trace
from potluck.sanitized_text import harmless

LANES = ("compute", "send", "receive")
LANE_TIDS = 100  # thread ids per lane: lane index * LANE_TIDS + 1 + how many overlap
GROUP_PIDS = 1000  # process ids per trace
# Perfetto colours slices by name; chrome://tracing and others take these reserved names
COLOURS = {
    "forward": "thread_state_running",
    "backward": "thread_state_runnable",
    "step": "good",
    "send": "rail_load",
}

# device name: (time in s, watts from then on), ascending
Watts = Mapping[str, Sequence[tuple[float, float]]]


def document(traces: Sequence[Trace], watts: Sequence[Watts] = ()) -> dict[str, Any]:
    """The JSON document of some traces; `watts[i]` belongs to `traces[i]`."""
    rows: list[dict[str, Any]] = []
    for group, trace in enumerate(traces):
        rows += _group(trace, group, watts[group] if group < len(watts) else {})
    return {"traceEvents": rows, "displayTimeUnit": "ms"}


def save(path: str | Path, *traces: Trace, watts: Sequence[Watts] = ()) -> Path:
    """Write the document as a file.

    Raises
    ------
    FileError
        It cannot be written; nothing is left behind.
    """
    return write_text(path, json.dumps(document(traces, watts), allow_nan=False))


def modelled_watts(trace: Trace, members: Iterable[Device]) -> dict[str, list[tuple[float, float]]]:
    """Watts over time by the power model: idle, or busy while computing, plus radio while sending
    or receiving.

    Devices of unknown power are left out.
    """
    return {
        device.name: _power_steps(
            [event for event in trace.events if event.device == device.name], device
        )
        for device in members
        if device.idle_w is not None and device.busy_w is not None
    }


def _power_steps(events: Sequence[Event], device: Device) -> list[tuple[float, float]]:
    changes = sorted(
        (at_s, delta, event.lane == "compute")
        for event in events
        for at_s, delta in ((event.start_s, 1), (event.stop_s, -1))
    )
    idle_w, busy_w = device.idle_w or 0.0, device.busy_w or 0.0
    steps = [(0.0, idle_w)]
    computing = 0
    moving = 0
    for at_s, delta, computes in changes:
        computing, moving = (computing + delta, moving) if computes else (computing, moving + delta)
        watts = (busy_w if computing else idle_w) + (device.radio_w or 0.0) * (moving > 0)
        if steps[-1][0] == at_s:
            steps.pop()
        if not steps or steps[-1][1] != watts:
            steps.append((at_s, watts))
    return steps


def flows(trace: Trace) -> list[tuple[Event, Event]]:
    """Each send with its receive: same two devices and step, then the same label, then the same
    order in time.
    """
    waiting: dict[tuple[Any, ...], list[Event]] = {}
    events = sorted(trace.events, key=lambda event: (event.start_s, event.stop_s))
    for event in events:
        if event.lane == "receive":
            waiting.setdefault((event.peer, event.device, event.step), []).append(event)
    pairs, unnamed = [], []
    for sent in (event for event in events if event.lane == "send"):
        candidates = waiting.get((sent.device, sent.peer, sent.step), [])
        same = next((event for event in candidates if event.label == sent.label), None)
        if same is None:
            unnamed.append((sent, candidates))
        else:
            candidates.remove(same)
            pairs.append((sent, same))
    pairs += [(sent, candidates.pop(0)) for sent, candidates in unnamed if candidates]
    return pairs


def _group(trace: Trace, group: int, watts: Watts) -> list[dict[str, Any]]:
    names = list(dict.fromkeys([*devices(trace), *watts]))
    pids = {name: group * GROUP_PIDS + index + 1 for index, name in enumerate(names)}
    threads = _threads(trace.events)
    rows: list[dict[str, Any]] = []
    for name, pid in pids.items():
        rows.append(_named("process_name", pid, 0, f"{trace.source}: {harmless(name)}"))
        rows.append(
            {
                "name": "process_sort_index",
                "ph": "M",
                "pid": pid,
                "tid": 0,
                "args": {"sort_index": pid},
            }
        )
    for name, tid in sorted(
        {(event.device, tid) for event, tid in zip(trace.events, threads, strict=True)}
    ):
        rows.append(_named("thread_name", pids[name], tid, _thread_words(tid)))
        rows.append(
            {
                "name": "thread_sort_index",
                "ph": "M",
                "pid": pids[name],
                "tid": tid,
                "args": {"sort_index": tid},
            }
        )
    rows += [
        _slice(event, pids[event.device], tid)
        for event, tid in zip(trace.events, threads, strict=True)
    ]
    rows += _arrows(
        trace,
        pids,
        {id(event): tid for event, tid in zip(trace.events, threads, strict=True)},
        group,
    )
    rows += [
        {
            "name": "watts",
            "ph": "C",
            "pid": pids[name],
            "tid": 0,
            "ts": _us(at_s),
            "args": {"W": value},
        }
        for name, steps in watts.items()
        for at_s, value in steps
    ]
    return rows


def _threads(events: Sequence[Event]) -> list[int]:
    """A thread id for each event, so that no two of one device's thread overlap: the first free one
    of its lane.
    """
    ends: dict[tuple[str, str], list[int]] = {}
    tids = [0] * len(events)
    for index in sorted(range(len(events)), key=lambda i: (events[i].start_s, events[i].stop_s)):
        event = events[index]
        lane = ends.setdefault((event.device, event.lane), [])
        start = _us(event.start_s)
        at = next((i for i, end in enumerate(lane) if end <= start), len(lane))
        lane[at : at + 1] = [start + _duration_us(event)]
        tids[index] = LANES.index(event.lane) * LANE_TIDS + 1 + at
    return tids


def _thread_words(tid: int) -> str:
    lane, extra = LANES[(tid - 1) // LANE_TIDS], (tid - 1) % LANE_TIDS
    return f"{lane} {extra + 1}" if extra else lane


def _slice(event: Event, pid: int, tid: int) -> dict[str, Any]:
    args: dict[str, Any] = {
        "step": event.step,
        "instruction": event.instruction,
        "op": harmless(event.op),
    }
    if event.peer:
        args |= {"peer": harmless(event.peer), "bytes": event.nbytes}
    name = harmless(event.label or event.op or event.lane)
    row = {
        "name": name,
        "cat": kind(event),
        "ph": "X",
        "pid": pid,
        "tid": tid,
        "ts": _us(event.start_s),
        "args": args,
    }
    row["dur"] = _duration_us(event)
    if kind(event) in COLOURS:
        row["cname"] = COLOURS[kind(event)]
    return row


def _arrows(
    trace: Trace, pids: Mapping[str, int], tids: Mapping[int, int], group: int
) -> list[dict[str, Any]]:
    rows = []
    for index, (sent, received) in enumerate(flows(trace)):
        arrow = {"name": "transfer", "cat": "transfer", "id": group * 10_000_000 + index}
        start, stop = _us(sent.start_s), _us(received.start_s) + _duration_us(received) - 1
        # clocks of two devices agree to about a millisecond; an arrow must not go back in time
        if stop < start:
            continue
        rows.append(
            {**arrow, "ph": "s", "pid": pids[sent.device], "tid": tids[id(sent)], "ts": start}
        )
        rows.append(
            {
                **arrow,
                "ph": "f",
                "bp": "e",
                "pid": pids[received.device],
                "tid": tids[id(received)],
                "ts": stop,
            }
        )
    return rows


def _named(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}


def _us(seconds: float) -> int:
    return round(seconds * 1e6)


def _duration_us(event: Event) -> int:
    # slices of no length are dropped by viewers
    return max(1, _us(event.stop_s) - _us(event.start_s))
