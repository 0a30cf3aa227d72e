"""Examples of inputs and targets, as the user gives them, made ready for tracing."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from inspect import Parameter
from typing import Any

import torch

from potluck.errors import ModelError
from potluck.graph.arguments import (
    BY_PLACE,
    Arguments,
    by_names,
    ordered,
    parameters,
    placeless,
    places,
    target_names,
    with_usual,
)
from potluck.graph.torch.own_loss import OwnLoss, own_loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """What a model is traced with: tensors of two rows or more, and what batches may call them."""

    inputs: list[torch.Tensor]
    targets: list[torch.Tensor]
    loss: Any  # a callable, an `OwnLoss` or None
    arguments: Arguments
    keywords: tuple[str, ...]  # as `forward` gets each input; empty for what goes by place

    def names(self) -> tuple[list[str], list[str]]:
        """What the graph calls the inputs, and the inputs and targets."""
        inputs = [f"input_{i}" if i else "input" for i in range(len(self.inputs))]
        targets = [f"target_{i}" if i else "target" for i in range(len(self.targets))]
        return inputs, [*inputs, *targets]


def examples(
    net: torch.nn.Module,
    loss: Any,
    example_inputs: Any,
    example_targets: Any,
    *,
    compares_rows: bool,
) -> Examples:
    """The examples of a user, in the order in which the module and its loss take them.

    Parameters
    ----------
    net, loss, example_inputs, example_targets, compares_rows
        As `Model.from_torch` takes them.

    Raises
    ------
    ModelError
        An example is missing, is no tensor, has another batch, or a name that nobody takes.
    """
    criterion, example_inputs, example_targets = own_loss(
        net, loss, example_inputs, example_targets, compares_rows=compares_rows
    )
    inputs = _inputs_of(net, example_inputs)
    targets, names = _targets_of(criterion, example_targets)
    _check_given(inputs, targets, criterion)
    two_inputs, two_targets = _at_least_two(inputs.tensors, targets)
    by_name = bool(inputs.keywords)
    return Examples(
        inputs=two_inputs,
        targets=two_targets,
        loss=criterion,
        arguments=Arguments(
            inputs=inputs.names,
            targets=names,
            by_name=by_name,
            placeless=placeless(net, inputs.names) if by_name else (),
        ),
        keywords=inputs.keywords,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inputs:
    """The inputs of an example in the order of `forward`, what it calls them, and which it gets by
    these names.
    """

    tensors: list[torch.Tensor]
    names: tuple[str, ...]
    keywords: tuple[str, ...] = ()  # empty for what goes by place


def _inputs_of(net: torch.nn.Module, example: Any) -> _Inputs:
    """The inputs of an example: a tensor, a row of them, or a mapping by the names that `forward`
    gives them.
    """
    known = parameters(net)
    named = by_names(example, [p.name for p in known])
    if named is not None:
        given = {name: value for name, value in named.items() if value is not None}
        names = ordered(given, net)
        by_place = {p.name for p in known if p.kind is Parameter.POSITIONAL_ONLY}
        tensors = [_checked(given[name], f"example input {name}") for name in names]
        return _Inputs(
            tensors=tensors, names=names, keywords=tuple("" if n in by_place else n for n in names)
        )
    needed = [
        p.name for p in known if p.kind is Parameter.KEYWORD_ONLY and p.default is Parameter.empty
    ]
    if needed:
        raise ModelError(
            f"forward takes {', '.join(needed)} by name alone.",
            next_step=f'Give the example as a mapping: {{"{needed[0]}": tensor, ...}}.',
        )
    tensors, own = _rows_of(example, "input"), places(net)
    return _Inputs(tensors=tensors, names=(*own, *[""] * len(tensors))[: len(tensors)])


def _targets_of(
    loss: Callable[..., Any] | OwnLoss | None, example: Any
) -> tuple[list[torch.Tensor], tuple[tuple[str, ...], ...]]:
    """The targets of an example in the order in which the loss takes them, and all names that each
    may have.
    """
    if isinstance(loss, OwnLoss):
        found = [_checked(example[name], f"example target {name}") for name in loss.targets]
        return found, with_usual(tuple((name,) for name in loss.targets))
    own = places(loss)[1:] if loss is not None else ()
    named = by_names(example, own)
    if named is None or loss is None:
        tensors = _rows_of(example if named is None else list(named.values()), "target")
        return tensors, target_names(loss, len(tensors)) if loss is not None else ()
    keys = tuple(named)
    if len(keys) != 1 or keys[0] in own[1:]:  # the only one may have a name of its own
        keys = tuple(name for name in own[: len(named)] if name in named)
        if len(keys) < len(named):
            raise ModelError(
                f"the targets are {', '.join(map(str, named))}; the loss takes "
                f"{', '.join(own) or 'none by name'}.",
                next_step="Call them as the loss does, or give them as a tuple, in order.",
            )
    return [_checked(named[key], f"example target {key}") for key in keys], target_names(
        loss, len(keys), keys
    )


def _check_given(
    inputs: _Inputs, targets: Sequence[torch.Tensor], loss: Callable[..., Any] | OwnLoss | None
) -> None:
    """Refuse examples that are missing, or of no use."""
    if not inputs.tensors:
        raise ModelError("an example of the inputs is needed.")
    if loss is not None and not targets and not _is_of_outputs(loss):
        raise ModelError(
            "a loss needs an example of the targets.",
            next_step="Pass example_targets; or a loss of the output alone, loss(output).",
        )
    if targets and loss is None:
        raise ModelError(
            "targets are given, and no loss.", next_step="Pass loss=, as in loss(output, target)."
        )


def _is_of_outputs(loss: Callable[..., Any] | OwnLoss) -> bool:
    """Whether a loss is taken without targets."""
    if isinstance(loss, OwnLoss):
        return True
    known = [p for p in parameters(loss) if p.kind in BY_PLACE]
    return bool(known) and all(p.default is not Parameter.empty for p in known[1:])


def _rows_of(example: Any, what: str) -> list[torch.Tensor]:
    """The tensors of an example, which is one of them, or a row of them."""
    tensors = (
        list(example)
        if isinstance(example, Sequence | Iterator) and not isinstance(example, str)
        else [example]
    )
    return [
        _checked(tensor, f"example {what}{f' {i}' if len(tensors) > 1 else ''}")
        for i, tensor in enumerate(tensors)
    ]


def _checked(tensor: Any, which: str) -> torch.Tensor:
    if not isinstance(tensor, torch.Tensor):
        raise ModelError(
            f"{which} is a {type(tensor).__name__}; a tensor whose first dimension is the batch is "
            "expected.",
            next_step="Wrap the module in one that takes tensors, one after the other.",
        )
    if tensor.dim() == 0 or tensor.layout is not torch.strided:
        form = "has no dimension" if tensor.dim() == 0 else "is sparse"
        raise ModelError(
            f"{which} {form}; a dense tensor whose first dimension is the batch is expected."
        )
    return tensor


def _at_least_two(
    inputs: list[torch.Tensor], targets: list[torch.Tensor]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The example with two rows where it has one: a batch of one would be taken for a constant."""
    rows = {tensor.shape[0] for tensor in (*inputs, *targets)}
    if len(rows) != 1 or 0 in rows:
        raise ModelError(
            f"the examples have {sorted(rows)} rows.",
            next_step="Give them all the same batch, as first dimension.",
        )
    if rows == {1}:
        return [torch.cat([x, x]) for x in inputs], [torch.cat([x, x]) for x in targets]
    return inputs, targets
