"""What home feeds of a step of training, or of several whose updates come late, by name."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from potluck.run.tensors import joined, kept
from potluck.schedule.step_update import RATES, named_in_step

if TYPE_CHECKING:
    import torch

    from potluck.graph.loss.constants import LossConstants

    Batch = tuple[torch.Tensor, ...]


def fed_steps(
    model: Any,
    batch: "Batch",
    rows: Sequence[int],
    rates: "Sequence[torch.Tensor]",
    constants: "LossConstants | None",
) -> "Mapping[str, torch.Tensor]":
    """All that devices are fed: copies, as loaders may fill the same tensors again meanwhile.

    Parameters
    ----------
    model
        What is trained.
    batch
        Inputs, then targets, of all steps; each [rows, ...].
    rows
        Of each step.
    rates
        Of the optimizer in each step, where some come with it: [groups, settings].
    constants
        Of the model's loss.
    """
    steps = [
        model.fed(*(tensor[stop - n : stop] for tensor in batch), constants=constants)
        for n, stop in zip(rows, accumulate(rows), strict=True)
    ]
    if len(steps) == 1:
        named = {port: kept(tensor) for port, tensor in steps[0].items()}
        return named | dict(zip([RATES], rates, strict=False))
    rowed = [port.name for port in model.inputs(True) if port.multiple]
    found = dict(zip(rowed, joined(steps, rowed), strict=True))
    # what is of a whole batch, such as by what a weighted mean divides, is of each step's
    for j, values in enumerate(steps):
        own = {name: kept(values[name]) for name in values if name not in rowed}
        own |= dict(zip([RATES], rates[j : j + 1], strict=False))
        found |= {named_in_step(name, j): value for name, value in own.items()}
    return found
