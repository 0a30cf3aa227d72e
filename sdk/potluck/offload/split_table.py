"""How to share one request at every bandwidth: a table of splits, planned, lowered, compiled and
predicted. Pure.

An entry is a program on each side; where sharing does not pay, there is none, and the device
answers alone.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from potluck.errors import UserError
from potluck.graph.backends import kind_on
from potluck.offload.compile import SharedProgram, Sides, compile_shared
from potluck.offload.explanation import RequestExplanation
from potluck.offload.home_problem import own_media, sharing_in
from potluck.offload.plan import baselines
from potluck.offload.plan.bandwidths import Found
from potluck.offload.plan.lowering import DEVICE, HELPER, Shareable, lower
from potluck.offload.plan.problem import OffloadProblem
from potluck.offload.plan.search_spec import SearchSpec
from potluck.offload.plan.split import Split, Splitter
from potluck.offload.rows.operator_times import OperatorTimes
from potluck.planning.scenario import rated
from potluck.records import Plan, Problem, Stage, Trace
from potluck.run.compiled_plan import CompiledPlan, compile_for_run
from potluck.run.emulated_times import paced
from potluck.schedule import Compiled
from potluck.simulate import simulate
from potluck.simulate.cost import CostTable
from potluck.simulate.duration import instruction_s

BANDWIDTHS = tuple(
    1e6 * mb for mb in (0, 0.25, 0.5, 1, 1.5, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50)
)
BANDWIDTHS_OF_SEVERAL = tuple(1e6 * mb for mb in (0, 1, 4, 10, 20, 40))
N_SEARCHES = 51  # as many as whole MB/s up to 50
# and the one of now: 0.3 to 2 s
FIRST_BANDWIDTHS = tuple(1e6 * mb for mb in (0, 2, 5, 8, 12, 20, 40))
FIRST_BANDWIDTHS_OF_SEVERAL = (0.0,)
FIRST_LEVELS = 6  # half as long as 11, and as good within 1 % on six networks of seven


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitEntry:
    """What to do at `bytes_per_s` and above. `program` None: the device answers alone."""

    bytes_per_s: float
    split: Split | None = None
    program: SharedProgram | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitTable:
    """The entries by ascending bandwidth, the first from 0 on."""

    entries: tuple[SplitEntry, ...]

    def at(self, bytes_per_s: float) -> SplitEntry:
        """What to do at that bandwidth."""
        index = bisect_right([entry.bytes_per_s for entry in self.entries], bytes_per_s) - 1
        return self.entries[max(index, 0)]

    @property
    def programs(self) -> tuple[SharedProgram, ...]:
        """Every program once."""
        return tuple(
            {e.program.name: e.program for e in self.entries if e.program is not None}.values()
        )


@dataclass(frozen=True, kw_only=True)
class SplitCase:
    """What a table is made of: the model as operators, all sides, and what the user wants."""

    model: Any
    shareable: Shareable
    problem: Problem
    names: tuple[str, ...]  # of the devices, by side
    side_times: tuple[OperatorTimes, ...]  # by side
    batch: int
    weight_source: str  # the segment that has the weights
    emulated: frozenset[str] = frozenset()
    deadline_s: float | None = None  # with one, joules are saved
    bandwidths: tuple[float, ...] = BANDWIDTHS  # this, and the next two, as in `SearchSpec`
    n_searches: int = 0
    baseline: str = ""
    # of these, splits are there before all others are searched for; none: all at once
    first: tuple[float, ...] = ()

    @cached_property
    def sharing(self) -> OffloadProblem:
        """The planner's problem; its link is still open."""
        device, helpers = self.problem.device(self.names[DEVICE]), self.names[HELPER:]
        return sharing_in(
            self.problem.network, device, helpers, self.shareable, self.side_times, self.batch
        )

    def request(self, inputs: Sequence[Any]) -> dict[str, Any]:
        """The input of a request by its name.

        Parameters
        ----------
        inputs
            One tensor, [rows, ...], as the example was.

        Raises
        ------
        ModelError
            Its type or shape is another one.
        UserError
            It has another number of rows.
        """
        from potluck import units

        rows = self.model.check_inputs(*inputs)
        if rows != self.batch:
            raise UserError(
                f"a request has {units.number(self.batch, 'row')}, as the example had; got {rows}.",
                next_step=f"Give {self.batch}, or accelerate with an example of {rows}.",
            )
        return {self.model.inputs()[0].name: inputs[0]}

    def answer(self, outputs: Mapping[str, Any]) -> list[Any]:
        """All outputs of the model, in its order; one that is the same as another came once."""
        graph = self.shareable.line.traced.graph
        by_ref = {
            output.ref: outputs[output.name] for output in graph.outputs if output.name in outputs
        }
        return [by_ref[output.ref] for output in graph.outputs]

    def among(self, names: tuple[str, ...]) -> "SplitCase":
        """The case of these devices alone."""
        side_times = tuple(
            times for name, times in zip(self.names, self.side_times, strict=True) if name in names
        )
        return replace(self, names=names, side_times=side_times)

    def whole(self, device: str, run: str) -> CompiledPlan:
        """The whole model on one device: the weights of all pieces, and how to answer alone."""
        stage = Stage(
            start=0, stop=len(self.model.layers()), devices=(device,), shares=(self.batch,)
        )
        plan = Plan(
            planner="whole", model="", stages=(stage,), micro_batch=self.batch, training=False
        )
        backends = {device: self.problem.device(device).backends}
        compiled_plan = compile_for_run(
            self.model, plan, run=run, epoch=0, optimizer=None, backends=backends
        )
        paced = {
            name: self.as_emulated(compiled) for name, compiled in compiled_plan.compiled.items()
        }
        return replace(compiled_plan, compiled=paced)

    @property
    def spec(self) -> SearchSpec:
        """What is searched for."""
        return SearchSpec(
            bandwidths=self.bandwidths,
            n_searches=self.n_searches,
            deadline_s=self.deadline_s,
            baseline=self.baseline,
        )

    def search(self) -> Found:
        """The best split for any bandwidth."""
        return self.spec.search(self.sharing)

    def first_search(
        self, bytes_per_s: float, report: Callable[[int], None] = lambda done: None
    ) -> Found:
        """Splits for some bandwidths, and for this one: right for any, if slower, and found in
        little time.
        """
        some = replace(
            self.spec, bandwidths=tuple(sorted({*self.first, bytes_per_s})), n_searches=0
        )
        return some.search(self.sharing, levels=FIRST_LEVELS, report=report)

    def table(self, found: Found) -> SplitTable:
        """A program for each split that was found."""
        return SplitTable(
            entries=tuple(
                SplitEntry(bytes_per_s=b, split=s, program=self._program(s)) for b, s in found
            )
        )

    def corrected(self, times: Mapping[str, float]) -> "SplitCase":
        """The same where devices take so many times as long as was thought."""
        known = zip(self.names, self.side_times, strict=True)
        side_times = tuple(each.scaled(times.get(name, 1.0)) for name, each in known)
        costs = dict(self.problem.costs)
        for name, factor in times.items():
            costs[name] = tuple(
                replace(c, forward_s=tuple(s * factor for s in c.forward_s)) for c in costs[name]
            )
        return replace(self, side_times=side_times, problem=replace(self.problem, costs=costs))

    def computing_s(self, compiled: Compiled, device: str) -> float:
        """What all that a device runs in one request should take it."""
        table, known = CostTable(self.problem), self.problem.device(device)
        pairs = zip(compiled.programs[device].instructions, compiled.notes[device], strict=True)
        return sum(
            instruction_s(table, known, item, note) for item, note in pairs if item.op == "run"
        )

    def _program(self, split: Split) -> SharedProgram | None:
        if not split.sent_bytes and not split.received_bytes:
            return None
        shared = lower(self.shareable, split.divisions, split.tiles)
        kinds = {
            name: kind_on(self.model, name, self.problem.device(name).backends, train=False)
            for name in self.names
        }
        sides = Sides(names=self.names, kinds=kinds, sharing=self.sharing, batch=self.batch)
        digest = hashlib.sha256(repr((split.divisions, split.tiles)).encode()).hexdigest()
        name = f"share-{digest[:16]}"
        program = compile_shared(
            self.shareable, shared, sides, self.model, name=name, weight_source=self.weight_source
        )
        return replace(program, compiled=self.as_emulated(program.compiled))

    def baselines(
        self, alone: Compiled, bytes_per_s: float
    ) -> dict[str, tuple[float, float | None]]:
        """Seconds, and joules of the device, of a request as others would answer it at this
        bandwidth, predicted.
        """
        splitter = Splitter(self.sharing)
        found = {"the device alone": self.predict(alone, bytes_per_s)}
        for name, way in (("all on the helper", "helper"), ("the best layer cut", "layer cut")):
            split = baselines.answer(way, splitter, bytes_per_s)
            program = self._program(split) if split is not None else None
            found[name] = self.predict(
                program.compiled if program is not None else alone, bytes_per_s
            )
        device = self.names[DEVICE]
        costs = {
            name: (max(trace.step_s), trace.energy_j.get(device)) for name, trace in found.items()
        }
        costs["the best layer cut"] = min(costs.values(), key=lambda row: row[0])
        return costs

    def as_emulated(self, compiled: Compiled) -> Compiled:
        """The programs with the times that emulated devices shall take."""
        return paced(compiled, self.problem, self.emulated) if self.emulated else compiled

    def predict(self, compiled: Compiled, bytes_per_s: float) -> Trace:
        """What one request does at this bandwidth, by the simulator.

        Alone, the link does not count.
        """
        return simulate(
            compiled, self.at(bytes_per_s) if len(compiled.programs) > 1 else self.problem
        )

    def account(self, entry: SplitEntry, alone: Compiled, bytes_per_s: float) -> RequestExplanation:
        """Who computes which rows when, at this bandwidth.

        Parameters
        ----------
        entry
            Of the table.
        alone
            The program of the device alone.
        bytes_per_s
            Of the link.
        """
        operators = self.sharing.operators
        compiled = entry.program.compiled if entry.program is not None else alone
        everything = {place: (0, operator.count) for place, operator in enumerate(operators)}
        notes = []
        if not self.shareable.has_rows:
            notes.append(
                "no operator of this model can compute some rows without the others: it is cut "
                "between them."
            )
        if entry.program is None:
            notes.append(f"sharing does not pay: {self.names[DEVICE]} answers alone.")
        return RequestExplanation(
            device=self.names[DEVICE],
            helpers=self.names[HELPER:],
            bytes_per_s=bytes_per_s,
            operators=operators,
            rows=entry.program.rows
            if entry.program is not None
            else {self.names[DEVICE]: everything},
            predicted=self.predict(compiled, bytes_per_s),
            alone_s=max(self.predict(alone, bytes_per_s).step_s),
            notes=tuple(notes),
        )

    def at(self, bytes_per_s: float) -> Problem:
        """The problem with this bandwidth between the device and its helpers."""
        network = self.problem.network
        for name, times in own_media(network, self.names).items():
            network = rated(network, name, max(bytes_per_s, 1.0) * times)
        return replace(self.problem, network=network)
