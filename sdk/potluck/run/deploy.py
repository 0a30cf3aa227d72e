"""Deploy: a plan onto its devices, with the model's weights or those of a saved run."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potluck.adapt.lightweight_replay import POLICIES, SOONEST
from potluck.argument_checks import check_flags, number_of
from potluck.documents import file_path
from potluck.errors import FileError, OutOfMemory, UserError
from potluck.handle import Task
from potluck.records import Plan, Training
from potluck.run import checkpoint
from potluck.run.checkpoint import MAX_SEED, Checkpoint
from potluck.run.compiled_plan import kept_types
from potluck.run.device_wait import ANSWER_PATIENCE_S, PATIENCE_S
from potluck.run.engine import RunEngine
from potluck.run.run import Run
from potluck.run.snapshots import Protection, Snapshot, check_protect
from potluck.run.state_transfer import completed
from potluck.run.tensors import kept
from potluck.run.update_source import UpdateSource, source_of
from potluck.run.weight_update import PLAIN, Update, is_average, keep_alike
from potluck.schedule.policies import Policy
from potluck.sessions.link import SessionLink
from potluck.sessions.members import Members

if TYPE_CHECKING:
    import torch

    from potluck.graph.traced import Type
    from potluck.profile.profiles import Profile

USUAL_COPIES = Training(batch=1).kept_copies
COPY_BYTES_PER_S = 1e9  # within the memory of a small device, until it is measured


def deploy(
    link: SessionLink,
    members: Members,
    model: Any,
    plan: Plan,
    task: Task,
    *,
    optimizer: Any = None,
    seed: int = 0,
    resume: str | Path | None = None,
    profile: "Profile | None" = None,
    schedule: str | Policy | None = None,
    order_transfers: bool | None = None,
    refine_s: float = 0.0,
    protect: bool | int | None = None,
    patience_s: float | None = None,
    recovery: str = SOONEST,
) -> Run:
    """Load `plan` on its devices with the model's weights, or those of a saved run.

    Parameters
    ----------
    link, members
        The home's connection and its devices.
    model
        What is run.
    plan
        Which layers run where.
    task
        Where progress is reported.
    optimizer
        One of ours, or of torch's; default for training: AdamW.
    seed
        Of the random numbers of training.
    resume
        A file of `Run.save`.
    profile
        What the run is predicted by.
    schedule
        A policy, by name or as a function.
    order_transfers, refine_s, protect, patience_s, recovery
        As for `Home.deploy`.

    Raises
    ------
    UserError
        A number is not what it should be.
    FileError
        The file cannot be read, or was saved from another model or optimizer.
    OutOfMemory
        A device needs more memory than it may use.
    """
    if patience_s is None:
        patience_s = PATIENCE_S if plan.training else ANSWER_PATIENCE_S
    _check(seed, recovery, refine_s=refine_s, patience_s=patience_s)
    check_flags(order_transfers=order_transfers, or_none=True)
    check_protect(protect, training=plan.training)
    source = source_of(model, optimizer) if optimizer is not None else None
    model.check_as_traced(train=plan.training)
    saved = _saved_run(file_path(resume), model, source) if resume is not None else None
    task.update(0.1, "loading the plan")
    usual = replace(saved.optimizer, rated=()) if saved is not None else PLAIN
    chosen = (source.update if source is not None else usual) if plan.training else None
    try:
        engine = RunEngine(
            link,
            members,
            model,
            plan,
            optimizer=chosen,
            seed=saved.seed if saved is not None else seed,
            profile=profile,
            schedule=schedule,
            order_transfers=order_transfers,
            refine_s=refine_s,
            sizes=model.request_rows,
        )
    except OutOfMemory as error:
        if source is None and saved is None and _keeps_less_than_usual(plan):
            raise _without_its_optimizer(error) from error
        raise
    engine.patience_s = patience_s
    engine.recovery = recovery
    engine.source = source if plan.training else None
    run = Run(engine, link)
    try:
        task.update(0.5, "sending weights")
        if saved is None and not plan.training:
            engine.value_marks = model.value_marks()
        if saved is not None:
            _check_tensors(str(resume), saved, engine)
        weights = saved.weights if saved else model.state()
        engine.loss_constants = model.loss_constants(weights) if plan.training else None
        engine.state.push(weights, offered=True)
        task.update(0.9, engine.state.deployed.words)
        moments = _go_on(engine, model, saved) if saved is not None else {}
        engine.is_protected = protect is not False
        if chosen is not None and engine.is_protected:
            engine.protection = _protection(engine, chosen, weights, moments, protect)
        engine.group.meter()
    except BaseException:
        run.close()
        raise
    run.watch_devices()
    return run


def _check(seed: int, recovery: str, **seconds: float) -> None:
    for name, given in seconds.items():
        number = number_of(given)
        if number is None or not 0 <= number < float("inf"):
            raise UserError(f"{name} is a number of seconds, 0 or more, got {given!r:.60}.")
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= MAX_SEED:
        raise UserError(f"the seed is a whole number from 0 to 2**53, got {seed!r}.")
    if not isinstance(recovery, str) or recovery not in POLICIES:
        raise UserError(
            f"there is no way of recovery called {recovery!r}; there are {', '.join(POLICIES)}."
        )


def _keeps_less_than_usual(plan: Plan) -> bool:
    """Whether it was planned for an optimizer that keeps less than the one that is taken where none
    is given.
    """
    workload = plan.problem.workload if plan.problem is not None else None
    return isinstance(workload, Training) and workload.kept_copies < USUAL_COPIES


def _without_its_optimizer(error: OutOfMemory) -> OutOfMemory:
    """The same, and what it is about."""
    text = str(error).removeprefix(f"{error.device}: ").removesuffix(error.next_step).rstrip()
    return OutOfMemory(
        f"{text} The plan was made for an optimizer that keeps less than AdamW, which is taken "
        "where none is given.",
        device=error.device,
        next_step="Name it here: home.deploy(plan, optimizer=potluck.SGD(lr=0.1)).",
        **error.facts,
    )


def _saved_run(path: Path, model: Any, source: UpdateSource | None) -> Checkpoint:
    """What is in that file, which is of this model and of the optimizer, where one was chosen."""
    saved = checkpoint.load(path)
    if saved.signature != model.signature:
        raise FileError(
            f"{path} was saved from another model.",
            next_step="One of which other weights are trained, or of another loss, is another: "
            "resume the one that was saved, run.load_into(), and deploy the new one.",
            path=str(path),
        )
    unused = model.unused_state()
    for name, tensor in saved.unused.items():
        wanted = unused.get(name, tensor)
        if (wanted.shape, wanted.dtype) != (tensor.shape, tensor.dtype):
            raise FileError(
                f"{path} has {name} as {tensor.dtype} {list(tensor.shape)}, the module as "
                f"{wanted.dtype} {list(wanted.shape)}.",
                next_step="Resume with a module of the kind that was saved.",
                path=str(path),
            )
    if source is not None and saved.moments and not keep_alike(source.update, saved.optimizer):
        raise FileError(f"{path} holds the state of another optimizer.", path=str(path))
    return saved


def _check_tensors(path: str, saved: Checkpoint, engine: RunEngine) -> None:
    """Refuse a file whose tensors are not those of this plan, before a device is asked."""
    compiled_plan, model = engine.compiled_plan, engine.model
    training = compiled_plan.plan.training
    state_types = model.laid_out(training).line.traced.state_types
    for state in chain.from_iterable(compiled_plan.states(optimizer=False).values()):
        name = state.name
        _check_tensor(path, name, saved.weights.get(name), state_types.get(name), as_it_is=True)
    if not saved.moments or not training or compiled_plan.optimizer is None:
        return
    trained = chain.from_iterable(piece.trained.items() for piece in compiled_plan.pieces)
    for parameter, of in trained:
        for name, kind in kept_types(compiled_plan.optimizer, parameter, of).items():
            if name in saved.moments or not is_average(name):
                _check_tensor(path, name, saved.moments.get(name), kind)


def _check_tensor(
    path: str,
    name: str,
    tensor: "torch.Tensor | None",
    wanted: "Type | None",
    *,
    as_it_is: bool = False,
) -> None:
    """One of them, as far as it is known which it should be; if not `as_it_is`, floats may come
    from floats of another size.
    """
    if tensor is None:
        raise FileError(f"{path} does not hold: it has no {name}.", path=path)
    if wanted is None:
        return
    got = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
    is_kind = got[0] == wanted.dtype if as_it_is else tensor.is_floating_point()
    if not is_kind or got[1] != tuple(wanted.at({}).shape):
        raise FileError(
            f"{path} does not hold: {name} is {got[0]} {list(got[1])} in it, and {wanted.dtype} "
            f"{list(wanted.shape)} in the model.",
            path=path,
        )


def _go_on(engine: RunEngine, model: Any, saved: Checkpoint) -> "Mapping[str, torch.Tensor]":
    """From where the saved run was: its optimizer's state, which is returned, and its place."""
    training, unused = engine.compiled_plan.plan.training, model.unused_state()
    trained = model.laid_out(True).line.traced.state_types if training else {}
    engine.weights_of_file = {n: t for n, t in saved.weights.items() if n not in trained}
    engine.unused_of_file = {n: t for n, t in saved.unused.items() if n in unused}
    moments: Mapping[str, torch.Tensor] = {}
    if saved.moments and training:
        moments = completed(saved.moments, saved.weights, engine.compiled_plan)
        engine.state.push(moments, moments=True)
    engine.step = engine.first_step = saved.step
    engine.resumed_schedule = saved.schedule
    if saved.position is not None:
        engine.positions[saved.step] = saved.position
    return moments


def _protection(
    engine: RunEngine,
    optimizer: Update,
    weights: "Mapping[str, torch.Tensor]",
    moments: "Mapping[str, torch.Tensor]",
    protect: bool | int | None,
) -> Protection:
    """What the run goes back to at first: what was sent. To fetch it takes about as long, and as
    long again for each moment of the optimizer.
    """
    n_moments = len(optimizer.slots("", (1,))) if not moments else 0
    own = {name: kept(tensor) for name, tensor in weights.items()}  # the module's may change
    first = Snapshot(step=engine.step, optimizer=optimizer, weights=own, moments=moments)
    every = None if protect is None or protect is True else protect
    compiled_plan, home_s = engine.compiled_plan, engine.state.moved_s * (1 + n_moments)
    return Protection(
        first,
        cost_s=first.nbytes * (1 + n_moments) / COPY_BYTES_PER_S if every is None else home_s,
        n_devices=len(compiled_plan.plan.devices),
        every=every,
        # what devices had kept did not come over the link: then nobody knows before the first
        arriving_s=home_s if every is None and not engine.state.deployed.kept_bytes else 0.0,
        copies={
            d: compiled_plan.copied_bytes(d) for d in compiled_plan.plan.devices if every is None
        },
    )
