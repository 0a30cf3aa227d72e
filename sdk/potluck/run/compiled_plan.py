"""One compiled plan of a run: a plan with its pieces of the model and the programs for every batch
size that is needed. Pure.

A run begins with one; another plan, optimizer or batch size makes the next one, under the next
epoch.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from potluck.errors import PlanError
from potluck.graph.backends import WEIGHT_COPIES, kind_on
from potluck.graph.traced import Type
from potluck.records import Plan, Problem, Segment, Stage
from potluck.run.stage_pieces import StagePiece, check_layers, cut
from potluck.run.weight_update import Update
from potluck.schedule import (
    FOLLOW,
    Compiled,
    NamedState,
    Standby,
    compile_inference,
    compile_late_training,
    compile_pull,
    compile_push,
    compile_training,
    standbys,
)
from potluck.schedule.late_order import Judge
from potluck.schedule.micro_batches import as_divided, check_company, check_whole, divide, exceeds
from potluck.schedule.policies import Policy, Times, policy
from potluck.schedule.step_update import StepUpdate
from potluck.simulate import simulate
from potluck_wire.graph import Parameter
from potluck_wire.limits import MAX_DOCUMENT_BYTES, MAX_HEADER_BYTES, MAX_MESSAGE_BYTES
from potluck_wire.messages import Prepare
from potluck_wire.optimizers import LOSS_SCALE

Request = tuple[Prepare, tuple[bytes, ...]]
Requests = Mapping[str, Request]  # by device

TRAIN = "train"
INFER = "infer"
PUSH = "push"
PULL = "pull"
MOVE = "move"
MOMENTS = "-optimizer"  # ends the names of the programs that move the optimizer's state


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledPlan:
    """Everything that the devices are told about one epoch.

    `compiled` maps program names to what compiling gave.

    `train_rows`: of each program that trains, the rows of its batch; `infer_rows`: of each that
    answers, those of its request. `kinds`: as what each device gets its pieces. `peak_bytes`: what
    steps on other batches than the plan's need.
    """

    run: str
    epoch: int
    plan: Plan
    pieces: tuple[StagePiece, ...]
    kinds: Mapping[str, str]
    optimizer: Update | None
    compiled: Mapping[str, Compiled]
    train_rows: Mapping[str, int] = field(default_factory=dict)
    infer_rows: Mapping[str, int] = field(default_factory=dict)  # of requests, the smallest first
    seed: int = 0
    schedule: str | Policy | None = None
    order_transfers: bool | None = None  # whether transfers take turns; None: where that is sooner
    peak_bytes: Mapping[str, int] = field(default_factory=dict)
    # who stays in step with which stage, to take it over; their epoch is the next
    standbys: tuple[Standby, ...] = ()

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments, in the order of the stages."""
        return tuple(piece.segment for piece in self.pieces)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Batch sizes besides the plan's own that there are programs for."""
        rows_by_program = self.train_rows if self.plan.training else self.infer_rows
        return tuple(rows for rows in rows_by_program.values() if rows != self.plan.batch)

    def step_rows(self, rows: int) -> tuple[int, ...]:
        """The rows of each step that the program for so many takes.

        Parameters
        ----------
        rows
            Of what it is fed.
        """
        return step_rows(rows, self.plan, self.optimizer)

    def answering(self, rows: int) -> tuple[str, int]:
        """The program that answers so many rows, or as many of them as it can, and its rows.

        Where an output compares rows, exactly so many: that program may have to be made.
        """
        if any(segment.whole_batch for segment in self.segments):
            return infer_name(rows, self.plan), rows
        large_enough = (pair for pair in self.infer_rows.items() if pair[1] >= rows)
        return next(large_enough, (INFER, self.plan.batch))

    def states(
        self, *, optimizer: bool, weights: bool = True, slots: Collection[str] | None = None
    ) -> dict[str, list[NamedState]]:
        """The named state of every segment: weights, and the optimizer's if it is there yet.

        Parameters
        ----------
        optimizer
            What it keeps, too.
        weights
            Parameters and buffers, too.
        slots
            Of what the optimizer keeps these alone; default: all.
        """
        found: dict[str, list[NamedState]] = {}
        for piece in self.pieces:
            held = piece.weights.items() if weights else ()
            rows = [
                NamedState(name=name, nbytes=nbytes, counts=name in piece.counters)
                for name, nbytes in held
            ]
            if optimizer and self.optimizer is not None:
                rows += [
                    NamedState(name=name, nbytes=kind.nbytes({}))
                    for parameter, of in piece.trained.items()
                    for name, kind in kept_types(self.optimizer, parameter, of).items()
                    if slots is None or name.partition(":")[0] in slots
                ]
            found[piece.segment.name] = rows
        return found

    def step_update(self, trained: Sequence[Parameter]) -> StepUpdate:
        """What the steps of its stages are told.

        Parameters
        ----------
        trained
            All parameters that are, in the order in which norms of gradients are looked at.
        """
        assert self.optimizer is not None  # a plan for training has one
        names = [parameter.name for parameter in trained]
        stages = [piece.trained for piece in self.pieces]
        return self.optimizer.of_stages(stages, names, scaled=self.scales_loss)

    @property
    def scales_loss(self) -> bool:
        """Whether its gradients are those of a loss that is multiplied by a factor."""
        return any(LOSS_SCALE in piece.counters for piece in self.pieces)

    def memory_bytes(self, device: str) -> int:
        """What the plan says that the device needs.

        Where it says nothing, at least what it holds.
        """
        planned = self.plan.peak_bytes.get(device) or self.held_bytes(device)
        return max(planned, self.peak_bytes.get(device, 0))

    def held_bytes(self, device: str) -> int:
        """Weights, gradients and moments on the device: what is there also while nothing is
        computed.
        """
        total = 0
        for stage, piece in zip(self.plan.stages, self.pieces, strict=True):
            if device in stage.devices:
                total += held_bytes(piece, self.optimizer if self.plan.training else None)
        return total * WEIGHT_COPIES[self.kinds[device]] if device in self.kinds else total

    def copied_bytes(self, device: str) -> int:
        """What one more copy of all state that the device has takes there: weights and moments."""
        states = self.states(optimizer=True)
        return sum(
            state.nbytes
            for stage, segment in zip(self.plan.stages, self.segments, strict=True)
            for state in states[segment.name]
            if device in stage.devices
        )

    def requests(
        self,
        extra: Compiled | None = None,
        others: Iterable[str] = (),
        memory: Mapping[str, int] | None = None,
    ) -> Requests:
        """What each device is asked to prepare.

        `extra` is one more program, which may involve `others` too.

        `memory`: bytes needed per device, where that is not `memory_bytes`.

        Parameters
        ----------
        extra
            One more program.
        others
            Devices that it involves, beside the plan's.
        memory
            Bytes per device; default: `memory_bytes`.
        """
        programs = [*self.compiled.values(), *([extra] if extra else [])]
        requests = {}
        for device in dict.fromkeys((*self.plan.devices, *others)):
            pieces = [
                p for s, p in zip(self.plan.stages, self.pieces, strict=True) if device in s.devices
            ]
            needed = self.memory_bytes(device) if memory is None else memory[device]
            order = Prepare(run=self.run, epoch=self.epoch, memory_bytes=needed, seed=self.seed)
            requests[device] = request(device, order, pieces, programs, self.kinds.get(device, ""))
        return requests


def held_bytes(piece: StagePiece, optimizer: Update | None) -> int:
    """Bytes of a piece that stay on a device: weights and caches, and where it is trained gradients
    and moments.
    """
    total = sum(piece.weights.values()) + piece.cache_bytes
    if optimizer is None:
        return total
    for parameter, kind in piece.trained.items():
        kept = kept_types(optimizer, parameter, kind).values()
        total += kind.nbytes({}) + sum(each.nbytes({}) for each in kept)
    return total


def kept_copies(update: Update, trained: Sequence[Parameter]) -> int:
    """Tensors of the size of its parameters that an optimizer keeps, about.

    Parameters
    ----------
    update
        How weights change.
    trained
        All parameters that are.
    """
    types = {p.name: Type(dtype=p.dtype, shape=p.shape) for p in trained}
    n_kept = sum(
        kept.elements({})
        for name, kind in types.items()
        for kept in kept_types(update, name, kind).values()
    )
    n_trained = sum(kind.elements({}) for kind in types.values())
    return round(n_kept / n_trained) if n_trained else 0


def kept_types(update: Update, parameter: str, kind: Type) -> dict[str, Type]:
    """What is kept for a parameter of this type beside its gradient: the name of each state, and
    its type.

    Parameters
    ----------
    update
        How weights change.
    parameter
        Its name.
    kind
        Its type.
    """
    shape = tuple(int(size) for size in kind.shape)  # type: ignore[arg-type]
    return {
        f"{slot}:{parameter}": Type(dtype=update.dtype(parameter, slot, kind.dtype), shape=its)
        for slot, its in update.slots(parameter, shape).items()
    }


def request(
    device: str, order: Prepare, pieces: Sequence[StagePiece], among: Iterable[Compiled], kind: str
) -> Request:
    """`order` for a device, with these pieces (of that `kind`) and those programs that are its own.

    Parameters
    ----------
    device
        Its name.
    order
        What all are asked.
    pieces
        That it computes.
    among
        All programs.
    kind
        "aten" or "onnx".
    """
    programs = [compiled.programs[device] for compiled in among if device in compiled.programs]
    document = {
        "segments": [
            {"name": piece.segment.name, "kind": kind}
            | ({"weights": piece.weight_source} if piece.weight_source else {})
            for piece in pieces
        ],
        "programs": [program.to_json() for program in programs],
    }
    header = json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
    documents = [piece.documents[kind] for piece in pieces]
    _check_size(device, [len(header), *map(len, documents)])
    return order, (header, *documents)


def _check_size(device: str, sizes: Sequence[int]) -> None:
    if sizes[0] > MAX_DOCUMENT_BYTES:
        raise PlanError(
            f"its programs take {sizes[0]} bytes; at most {MAX_DOCUMENT_BYTES} can be sent.",
            device=device,
            next_step="Use fewer micro-batches per step.",
        )
    if sum(sizes) > MAX_MESSAGE_BYTES - MAX_HEADER_BYTES:
        raise PlanError(
            f"its pieces of the model take {sum(sizes)} bytes; at most {MAX_MESSAGE_BYTES} can "
            "be sent.",
            device=device,
            next_step="Give it fewer layers.",
        )


def train_name(rows: int, plan: Plan) -> str:
    """The name of the program that trains on a batch of so many rows."""
    return TRAIN if rows == plan.batch else f"{TRAIN}-{rows}"


def step_rows(rows: int, plan: Plan, update: Update | None) -> tuple[int, ...]:
    """The rows of each step that so many are trained on in: one, but where updates come late.

    Parameters
    ----------
    rows
        Of a batch, or of several as one.
    plan
        For training.
    update
        How weights change in its steps.
    """
    if update is None or update.one_step_late is None or rows <= plan.batch:
        return (rows,)
    n, left = divmod(rows, plan.batch)
    return (plan.batch,) * n + (left,) * (left > 0)


def infer_name(rows: int, plan: Plan) -> str:
    """The name of the program that answers so many rows at once."""
    return INFER if rows == plan.batch else f"{INFER}-{rows}"


def follow_name(rows: int, plan: Plan) -> str:
    """The name of the program with which standbys follow that one."""
    return FOLLOW if rows == plan.batch else f"{FOLLOW}-{rows}"


def compile_for_run(
    model: Any,
    plan: Plan,
    *,
    run: str,
    epoch: int,
    optimizer: Update | None,
    backends: Mapping[str, Iterable[str]],
    sizes: Sequence[int] = (),
    seed: int = 0,
    schedule: str | Policy | None = None,
    order_transfers: bool | None = None,
    towards: Plan | None = None,
    fed_whole: bool = False,
    times: Times | None = None,
    judge: Judge | None = None,
) -> CompiledPlan:
    """Cut the model and compile every program: one step for each batch size, and the moving of
    weights.

    `backends`: what each device computes with. `schedule`: see `schedule.policies.policy`. With
    `towards`, the steps also tell what the devices of that plan need to stay in step with the
    stages that they lack; `plan` must be cut wherever that one is. `fed_whole`: see
    `compile_training`.

    Parameters
    ----------
    model
        What is run.
    plan
        Which layers run where.
    run
        The run's name.
    epoch
        The number of this plan in the run.
    optimizer
        None for inference.
    backends
        Per device, what it computes with.
    sizes
        Rows of batches, beside the plan's own.
    seed
        Of the random numbers of training.
    schedule
        A policy, by name or as a function.
    order_transfers
        Transfers will take turns; None where the simulator decides.
    towards
        The plan that comes next.
    fed_whole
        As for `compile_training`.
    times
        What its stages take, as far as a profile says.
    judge
        What programs take, as it says.

    Raises
    ------
    PlanError
        Plan and model do not fit each other.
    ModelError
        A device cannot compute its piece.
    """
    check_layers(model, plan)
    if plan.training and optimizer is None:
        raise PlanError("a plan for training needs an optimizer.")
    _check_pieces(model, optimizer)
    kinds = {
        device: kind_on(model, device, backends[device], train=plan.training)
        for device in plan.devices
    }
    pieces = cut(model, plan, kinds)
    segments = tuple(piece.segment for piece in pieces)
    check_company(plan, segments)
    check_whole(plan, segments)
    bare = CompiledPlan(
        run=run,
        epoch=epoch,
        plan=plan,
        pieces=pieces,
        kinds=kinds,
        optimizer=optimizer,
        compiled={},
        seed=seed,
        schedule=schedule,
        order_transfers=order_transfers,
        standbys=standbys(plan, segments, towards) if towards is not None else (),
    )
    order = policy(schedule or plan.schedule, training=plan.training, times=times)
    batches = tuple(dict.fromkeys((plan.batch, *sizes)))
    if plan.training:
        late = {"order": schedule and order, "times": times, "judge": judge}
        steps = _steps(bare, batches, order, model.trained, fed_whole, late)
    else:
        steps = {
            infer_name(rows, plan): compile_inference(each, segments, schedule=order(each))
            for rows, each in ((rows, of_rows(plan, rows)) for rows in batches)
        }
    compiled = {
        name: renamed(item, name) for name, item in (steps | _moves(bare)).items() if any_work(item)
    }
    if plan.training:
        return replace(
            bare, compiled=compiled, train_rows={train_name(rows, plan): rows for rows in batches}
        )
    infer_rows = {infer_name(rows, plan): rows for rows in sorted(batches)}
    return replace(bare, compiled=compiled, infer_rows=infer_rows)


def _check_pieces(model: Any, optimizer: Update | None) -> None:
    """Refuse an optimizer that looks at whole matrices, of which devices have pieces."""
    if optimizer is not None and optimizer.kind == "adafactor" and model.pieces:
        raise PlanError(
            "Adafactor goes by whole rows and columns of a weight, and devices have pieces of it.",
            next_step="Take an optimizer that goes by each number, such as potluck.AdamW(), or "
            "a model that is not divided by tensor.",
        )


def of_rows(plan: Plan, rows: int) -> Plan:
    """A plan for inference with so many rows a request, at once; of one device a stage.

    Parameters
    ----------
    plan
        For inference.
    rows
        Of the request.

    Raises
    ------
    PlanError
        A stage has several devices, whose shares are of one number of rows.
    """
    if rows == plan.batch:
        return plan
    if any(len(stage.devices) > 1 for stage in plan.stages):
        raise PlanError(
            "a plan that shares rows among devices answers one number of rows at once, "
            f"{plan.batch}; not {rows}.",
            next_step="Plan with one device for each stage.",
        )
    stages = tuple(replace(stage, shares=(rows,)) for stage in plan.stages)
    return replace(plan, stages=stages, micro_batch=rows, n_micro_batches=1)


def _steps(
    bare: CompiledPlan,
    sizes: Iterable[int],
    order: Policy,
    trained: Sequence[Parameter],
    fed_whole: bool,
    late: Mapping[str, Any],
) -> dict[str, Compiled]:
    """One step of training for each of these numbers of rows, or several whose updates come
    `late`.
    """
    found, update = {}, bare.step_update(trained)
    for rows in sizes:
        name, parts = train_name(rows, bare.plan), bare.step_rows(rows)
        if len(parts) > 1:
            found[name] = compile_late_training(
                bare.plan, bare.segments, update, parts, fed_whole=fed_whole, **late
            )
            continue
        division = divide(bare.plan, bare.segments, rows)
        schedule = order(as_divided(bare.plan, division))
        found[name] = compile_training(
            bare.plan,
            bare.segments,
            update,
            schedule=schedule,
            division=division,
            standbys=bare.standbys,
            to=f"{bare.epoch + 1}/{follow_name(rows, bare.plan)}" if bare.standbys else "",
            fed_whole=fed_whole,
        )
    return found


def _moves(bare: CompiledPlan) -> dict[str, Compiled]:
    """Weights from home, and of a plan for training back; the optimizer's state likewise."""
    weights, moments = bare.states(optimizer=False), bare.states(optimizer=True, weights=False)
    if not bare.plan.training:
        return {PUSH: compile_push(bare.plan, bare.segments, weights)}
    return {
        PUSH: compile_push(bare.plan, bare.segments, weights),
        PULL: compile_pull(bare.plan, bare.segments, weights),
        PUSH + MOMENTS: compile_push(bare.plan, bare.segments, moments),
        PULL + MOMENTS: compile_pull(bare.plan, bare.segments, moments),
    }


def beyond_plan(compiled_plan: CompiledPlan, problem: Problem) -> dict[str, int]:
    """Bytes that devices need for steps that may take more than the plan predicts: on more rows,
    or other shares.
    """
    found: dict[str, int] = {}
    plan, named = compiled_plan.plan, train_name if compiled_plan.plan.training else infer_name
    for rows in compiled_plan.sizes:
        is_late = len(compiled_plan.step_rows(rows)) > 1
        if is_late or exceeds(plan, divide(plan, compiled_plan.segments, rows)):
            step = compiled_plan.compiled[named(rows, plan)]
            for device, nbytes in simulate(step, problem).peak_bytes.items():
                found[device] = max(nbytes, found.get(device, 0))
    return found


def any_work(compiled: Compiled) -> bool:
    """Whether any device has anything to do."""
    return any(program.instructions for program in compiled.programs.values())


def renamed(compiled: Compiled, name: str) -> Compiled:
    """The same under another program name."""
    programs = {
        device: replace(program, name=name) for device, program in compiled.programs.items()
    }
    return replace(compiled, programs=programs)


def evaluation_plan(model: Any, plan: Plan, rows: int) -> Plan:
    """A plan for inference that keeps the weights of a training plan about where they are.

    The layers of the two graphs may differ in number: each layer for inference goes where its first
    weight is, never back to an earlier stage.

    Parameters
    ----------
    model
        What is run.
    plan
        Of the training.
    rows
        Of a request.
    """
    stage_of = {
        name: index
        for index, stage in reversed([*enumerate(plan.stages)])  # of several the first
        for name in model.state_names(stage.start, stage.stop, train=True)
    }
    layers: list[int] = []
    for layer in range(len(model.layers(False))):
        names = model.state_names(layer, layer + 1, train=False)
        first = next((stage_of[name] for name in names if name in stage_of), 0)
        layers.append(max(first, layers[-1] if layers else 0))
    stages = []
    for index, stage in enumerate(plan.stages):
        if index in layers:
            start, stop = layers.index(index), len(layers) - layers[::-1].index(index)
            stages.append(Stage(start=start, stop=stop, devices=stage.devices[:1], shares=(rows,)))
    return Plan(
        planner="evaluation",
        model=plan.model,
        stages=tuple(stages),
        micro_batch=rows,
        n_micro_batches=1,
        training=False,
    )
