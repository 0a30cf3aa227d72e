"""The end of a step as the instructions that agents carry out: gradients are summed over replicas
and over holders of shared weights, limited, and the optimizer takes its step.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from potluck.records import Plan, Segment, Tensor
from potluck.schedule.all_reduce import STILL, bounds
from potluck.schedule.micro_batches import Division
from potluck.schedule.program_builder import Annotation, ProgramBuilder, ReceivedValue, Reduction
from potluck.schedule.rows import intervals
from potluck.schedule.shared_weights import holders_of
from potluck.schedule.standby import (
    COPY,
    REPLAY,
    Standby,
    feed_rates,
    gradient_value,
    scale_value,
    step_attributes,
)
from potluck.schedule.step import StepSpec
from potluck.schedule.step_update import RATES, StepUpdate, alike, named_in_step

FIRST = -1  # the priority of what others wait for
SCALE, NORM = "scale", "norm"  # of all gradients: what they are multiplied by, and their norm


class UpdateInstructions:
    """Takes the end of a step down, from gradients to weights, on all devices of a plan."""

    def __init__(
        self,
        programs: ProgramBuilder,
        plan: Plan,
        segments: Sequence[Segment],
        division: Division,
        spec: StepSpec[Tensor],
        *,
        step_update: StepUpdate | None = None,
        standbys: Sequence[Standby] = (),
        to: str = "",
        fed_whole: bool = False,
        late_step: int | None = None,
    ) -> None:
        self.programs, self.plan = programs, plan
        self.segments, self.division = segments, division
        self.spec = spec
        self.step_update = step_update or alike(STILL, len(segments))
        self.shared = [name for name, _ in holders_of(segments)]
        self.standbys, self.to = standbys, to
        self.fed_whole = fed_whole
        # the number of the step, where a program has several and their updates come late
        self.late_step = late_step
        self.batch = division[-1][-1].stop
        # rows[stage][micro-batch][device index]: [first, stop) of the micro-batch
        self.rows = [[intervals(part.shares) for part in parts] for parts in division]
        self.fed: set[tuple[str, str]] = set()  # (device, value)

    def named(self, name: str) -> str:
        """What a value of this step is called.

        Parameters
        ----------
        name
            In a program of one step.
        """
        return named_in_step(name, self.late_step)

    # --- the end of a step ------------------------------------------------------------------------

    def vector(self, p: int, index: int, priority: int) -> str:
        """Gradients and statistics, weighted by the device's share of the batch."""
        rows = sum(part.shares[index] for part in self.division[p])
        item_bytes = self.segments[p].vector_item_bytes
        name, nbytes = self.named(f"grad{p}"), self.spec.n_elements[p] * item_bytes
        more: dict[str, Any] = {} if self.late_step is None else {"taken": True}
        self.programs.compute(
            self.plan.stages[p].devices[index],
            "gradients",
            [],
            {name: nbytes},
            note=Annotation(label=self.named(f"{p} gradients"), nbytes=nbytes),
            priority=priority,
            segment=self.segments[p].name,
            share_frac=rows / self.batch,
            **more,
        )
        return name

    def ring(self, p: int) -> "RingInstructions":
        """Of the devices of the stage."""
        devices, n_elements = self.plan.stages[p].devices, self.spec.n_elements[p]
        item_bytes = self.segments[p].vector_item_bytes
        return RingInstructions(
            self.programs,
            devices,
            n_elements,
            item_bytes,
            self.named(f"ring{p}"),
            is_late=self.late_step is not None,
        )

    def summed(self, p: int, vector: str, priority: int) -> None:
        """Standbys that copy the stage's updates get it."""
        self._show(p, self.plan.stages[p].devices[0], vector, gradient_value(p), COPY, priority)

    def shared_part(self, k: int, p: int, index: int, vector: str, priority: int) -> str:
        """A `slice`."""
        part = self._part(k, p)
        return self._slice(p, index, vector, f"tied{k}.{p}", part.start, part.stop, priority)

    def send_shared_part(self, k: int, p: int, q: int, index: int, part: str, priority: int) -> str:
        """A `send` and its `recv`."""
        device, peer = self.plan.stages[p].devices[0], self.plan.stages[q].devices[index]
        self.programs.send(device, part, peer, part, label=f"{p} tied>{q}", priority=priority)
        return part

    def shared_sum(self, k: int, q: int, index: int, parts: list[str], priority: int) -> str:
        """An `add`."""
        part = self._part(k, q)
        return self._join(
            q, index, "add", parts, f"tied{k}.sum.{q}", part.stop - part.start, priority
        )

    def with_shared(
        self, q: int, index: int, vector: str, sums: dict[int, str], priority: int
    ) -> str:
        """What is between the sums as slices, and all of it as one value."""
        pieces, stop = list[str](), 0
        for part, value in sorted((self._part(k, q), value) for k, value in sums.items()):
            if stop < part.start:
                name = f"vector{q}.{stop}"
                pieces.append(self._slice(q, index, vector, name, stop, part.start, priority))
            pieces.append(value)
            stop = part.stop
        n_elements = self.spec.n_elements[q]
        if stop < n_elements:
            name = f"vector{q}.{stop}"
            pieces.append(self._slice(q, index, vector, name, stop, n_elements, priority))
        name = f"vector{q}.all"
        return self._join(q, index, "concat", pieces, name, n_elements, priority, dim=0)

    def _part(self, k: int, p: int) -> "_Place":
        """Where the gradient of shared parameter k is in the vector of stage p."""
        name = self.shared[k]
        found = next(part for part in self.segments[p].shared if part.name == name)
        return _Place(found.start, found.stop)

    def _slice(
        self, p: int, index: int, vector: str, name: str, start: int, stop: int, priority: int
    ) -> str:
        places = {"dim": 0, "start": start, "stop": stop}
        return self._join(p, index, "slice", [vector], name, stop - start, priority, **places)

    def _join(
        self,
        p: int,
        index: int,
        op: str,
        inputs: list[str],
        name: str,
        n_elements: int,
        priority: int,
        **attrs: Any,
    ) -> str:
        nbytes = n_elements * self.segments[p].vector_item_bytes
        note = Annotation(label=f"{p} tied {op}", nbytes=nbytes)
        device = self.plan.stages[p].devices[index]
        self.programs.compute(
            device, op, inputs, {name: nbytes}, note=note, priority=priority, **attrs
        )
        return name

    def norms(self, p: int, vectors: list[str], priority: int) -> str:
        """Of the gradients of stage p, or of the vector of their sum."""
        segment, limit = self.segments[p], self.step_update.limit
        assert limit is not None
        name, nbytes = f"norms{p}", len(limit.parameters[p]) * segment.vector_item_bytes
        self.programs.compute(
            self.plan.stages[p].devices[0],
            "norms",
            vectors,
            {name: nbytes},
            note=self._note_of(p, "norms"),
            priority=priority,
            segment=segment.name,
            order=limit.carried_order,
        )
        return name

    def send_norms(self, p: int, judge: int, norms: str, priority: int) -> str:
        """A `send` and its `recv`."""
        device, peer = self.plan.stages[p].devices[0], self.plan.stages[judge].devices[0]
        label = f"{p} norms>{judge}"
        self.programs.send(device, norms, peer, norms, label=label, priority=priority)
        return norms

    def limit(self, judge: int, stages: list[int], norms: list[str], priority: int) -> str:
        """A `limit`; the norm of all gradients goes home."""
        segment, limit = self.segments[judge], self.step_update.limit
        assert limit is not None
        device, nbytes = self.plan.stages[judge].devices[0], segment.vector_item_bytes
        more: dict[str, Any] = {"scaled": True} if self.step_update.scaled else {}
        self.programs.compute(
            device,
            "limit",
            norms,
            {SCALE: nbytes, NORM: nbytes},
            note=Annotation(label="limit", nbytes=nbytes),
            priority=priority,
            segment=segment.name,
            order=limit.carried_order,
            most=limit.max_norm,
            places=limit.places(stages),
            **more,
        )
        result = ReceivedValue(
            device=device, value=NORM, tensor=NORM, kind="norm", whole=True, nbytes=nbytes
        )
        self.programs.result(result, label=f"norm>{self.programs.home}", priority=priority)
        return SCALE

    def send_scale(self, judge: int, p: int, index: int, scale: str, priority: int) -> str:
        """A `send` and its `recv`."""
        device, peer = self.plan.stages[judge].devices[0], self.plan.stages[p].devices[index]
        self.programs.send(device, scale, peer, scale, label=f"scale>{p}", priority=priority)
        return scale

    def update(
        self, p: int, index: int, vectors: list[str], scales: list[str], priority: int
    ) -> None:
        """A `step`; where no gradient comes back it only takes the statistics over."""
        device, learns = self.plan.stages[p].devices[index], self.spec.learns[p]
        if scales and index == 0:
            for way in (REPLAY, COPY):
                self._show(p, device, scales[0], scale_value(p), way, priority)
        rates = self._rates(device, priority) if learns else []
        more: dict[str, Any] = {} if self.late_step is None else {"late": True}
        self.programs.compute(
            device,
            "step",
            [*vectors, *scales, *rates],
            {},
            note=self._note_of(p, self.named("step")),
            priority=priority,
            segment=self.segments[p].name,
            **step_attributes(self.step_update, p, learns, vectors, scales, rates),
            **more,
        )

    def _rates(self, device: str, priority: int) -> list[str]:
        """The settings of this step, where some change from step to step."""
        if not self.step_update.n_rates:
            return []
        name = self.named(RATES)
        if (device, name) not in self.fed:
            self.fed.add((device, name))
            feed_rates(self.programs, self.step_update, device, priority, name)
        return [name]

    def _note_of(self, p: int, what: str) -> Annotation:
        segment = self.segments[p]
        return Annotation(
            label=f"{p} {what}",
            start=segment.start,
            stop=segment.stop,
            nbytes=segment.parameter_count * segment.vector_item_bytes,
        )

    # --- those who stay in step -------------------------------------------------------------------

    def _show(self, p: int, device: str, value: str, name: str, way: str, priority: int) -> None:
        """Post `value` of stage p to its standbys of that way."""
        for standby in self.standbys:
            if standby.stage == p and standby.way == way:
                for peer in standby.devices:
                    self.programs.post(
                        device,
                        value,
                        peer,
                        name,
                        to=self.to,
                        label=f"{name}>{peer}",
                        priority=priority,
                    )


class RingInstructions:
    """Takes an all-reduce over `devices` down as instructions; `tag` makes names unique.

    One that is late waits for nothing but its values, and goes before what is computed meanwhile:
    its sums take little, and much is to be sent.
    """

    def __init__(
        self,
        programs: ProgramBuilder,
        devices: Sequence[str],
        n_elements: int,
        item_bytes: int,
        tag: str,
        *,
        is_late: bool = False,
    ) -> None:
        self._programs, self._devices = programs, devices
        self._is_late = is_late
        self._item_bytes, self._tag = item_bytes, tag
        self._n_elements, self._bounds = n_elements, bounds(n_elements, len(devices))
        self._vectors: dict[int, str] = {}
        self._values: list[set[str]] = [set() for _ in devices]
        self._arrived: list[list[str]] = [[] for _ in devices]

    def piece(self, i: int, k: int, vector: str, priority: int) -> str:
        """A slice of it."""
        self._vectors[i] = vector
        start, stop = self._bounds[k], self._bounds[k + 1]
        name, part = f"{self._tag}.own.{k}", {"dim": 0, "start": start, "stop": stop}
        return self._compute(i, "slice", [vector], name, stop - start, priority, **part)

    def send(self, i: int, k: int, value: str, ring_step: int, priority: int) -> str:
        """To the next device of the ring."""
        right = (i + 1) % len(self._devices)
        name, label = f"{self._tag}.{ring_step}.{k}", f"{self._tag} ring step {ring_step}"
        self._programs.send(
            self._devices[i], value, self._devices[right], name, label=label, priority=priority
        )
        self._values[right].add(name)
        return name

    def add(self, i: int, k: int, own: str, arrived: str, ring_step: int, priority: int) -> str:
        """On the device that it arrived at."""
        self._arrived[i].append(arrived)
        n_elements = self._bounds[k + 1] - self._bounds[k]
        name = f"{self._tag}.sum.{ring_step}.{k}"
        return self._compute(i, "add", [own, arrived], name, n_elements, priority)

    def join(self, i: int, pieces: list[str], priority: int) -> str:
        """One after the other."""
        name, vector = f"{self._tag}.all", self._vectors[i]
        reduction = Reduction(
            vector, name, frozenset({vector, *self._values[i]}), tuple(self._arrived[i])
        )
        self._programs.reductions.setdefault(self._devices[i], []).append(reduction)
        return self._compute(i, "concat", pieces, name, self._n_elements, priority, dim=0)

    def _compute(
        self,
        i: int,
        op: str,
        inputs: Sequence[str],
        name: str,
        n_elements: int,
        priority: int,
        **attrs: Any,
    ) -> str:
        nbytes = n_elements * self._item_bytes
        note = Annotation(label=f"{self._tag} {op}", nbytes=nbytes)
        self._values[i].add(name)
        self._programs.compute(
            self._devices[i],
            op,
            inputs,
            {name: nbytes},
            note=note,
            priority=FIRST if self._is_late else priority,
            in_turn=not self._is_late,
            **attrs,
        )
        return name


class _Place(NamedTuple):
    """Elements [start, stop) of a vector."""

    start: int
    stop: int
