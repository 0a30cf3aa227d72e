"""Examples of inputs and targets, as the user gives them, made ready for tracing."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from potluck.errors import ModelError


def rows_of(example: Any, what: str) -> list[torch.Tensor]:
    """The tensors of an example, which is one of them, or a row of them."""
    tensors = list(example) if isinstance(example, Sequence | Iterator) and not isinstance(example, str) else [example]
    for i, tensor in enumerate(tensors):
        which = f"example {what}{f' {i}' if len(tensors) > 1 else ''}"
        if not isinstance(tensor, torch.Tensor):
            raise ModelError(
                f"{which} is a {type(tensor).__name__}; a tensor whose first dimension is the batch is expected.",
                next_step="Wrap the module in one that takes tensors, one after the other.",
            )
        if tensor.dim() == 0 or tensor.layout is not torch.strided:
            form = "has no dimension" if tensor.dim() == 0 else "is sparse"
            raise ModelError(f"{which} {form}; a dense tensor whose first dimension is the batch is expected.")
    return tensors


def at_least_two(
    inputs: list[torch.Tensor], targets: list[torch.Tensor]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The example with two rows where it has one: a batch of one would be taken for a constant."""
    rows = {tensor.shape[0] for tensor in (*inputs, *targets)}
    if len(rows) != 1 or 0 in rows:
        raise ModelError(
            f"the examples have {sorted(rows)} rows.", next_step="Give them all the same batch, as first dimension."
        )
    if rows == {1}:
        return [torch.cat([x, x]) for x in inputs], [torch.cat([x, x]) for x in targets]
    return inputs, targets
