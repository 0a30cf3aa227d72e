"""What is handed over is written as the files of a job."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from potluck.coordinator.batch_store import write_batches
from potluck.coordinator.file_batches import write_file_batches
from potluck.coordinator.job import BATCHES, FORMAT, JOB, MAX_PATIENCE_S, MODEL, PROFILE, START, Job
from potluck.errors import FileError, UserError
from potluck.graph.model_file import state_names, with_reductions
from potluck.profile import profile_file
from potluck.run.array_files import RemainingBatches

if TYPE_CHECKING:
    import torch

    from potluck.run.run import Run


def pack(
    folder: Path, run: "Run", batches: "Iterable[Sequence[torch.Tensor]]", *, adapt: bool | None
) -> None:
    """Write the files of a job.

    Parameters
    ----------
    folder
        Empty.
    run
        Whose training it goes on with, from its state now.
    batches
        Inputs, then targets; each [rows, ...].
    adapt
        As for `run.fit`.

    Raises
    ------
    FileError
        Something cannot be written.
    UserError
        There is no batch.
    """
    parts = run.parts
    model = parts.model
    model.save(folder / MODEL)
    (folder / BATCHES).mkdir()
    n_whole = len(model.inputs(True)) - len(model.laid_out(True).line.traced.given)
    if isinstance(batches, RemainingBatches):
        n_batches = write_file_batches(folder, batches, model, parts.constants, n_whole=n_whole)
    else:
        fed = (with_reductions(model, batch, parts.constants) for batch in batches)
        n_batches = write_batches(folder / BATCHES, fed, n_whole=n_whole)
    if not n_batches:
        raise UserError("there is nothing left to train on: the data has no batch.")
    job = Job(
        model=model.name,
        n_batches=n_batches,
        state_names=tuple(state_names(model)),
        protect=parts.protect,
        patience_s=min(parts.patience_s, MAX_PATIENCE_S),
        recovery=parts.recovery,
        adapt=adapt,
    )
    try:
        if parts.profile is not None:
            (folder / PROFILE).write_text(profile_file.dumps(parts.profile))
        (folder / JOB).write_text(json.dumps({"format": FORMAT, **asdict(job)}))
    except OSError as error:
        raise FileError(f"cannot write {folder}: {error.strerror}.", path=str(folder)) from error
    run.save(folder / START)
