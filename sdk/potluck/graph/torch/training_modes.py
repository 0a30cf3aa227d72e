"""Training and evaluation: a module is traced in the modes that its user left it in, and gets them
back.

What was put into `eval()` inside a module that is trained is frozen: its normalisations keep their
statistics, its dropout drops nothing. A module that is in evaluation as a whole says nothing of the
kind: it may have come so from a library, or have just answered. Where that makes a difference, its
user is asked.

A module that is in training answers as after `net.eval()`: so it is from its constructor on. One
that is in evaluation answers as it is: what inside it is in training stays so. Random numbers and
statistics of the rows at hand are refused in answers: they are of the rows together.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from potluck.errors import ModelError
from potluck.graph.traced import Traced
from potluck_wire.graph import Node
from potluck_wire.operators import KIND_OF, in_evaluation

_DROPPING = {
    "aten.dropout.default": 1,
    "aten.feature_dropout.default": 1,
    "aten.lstm.input": 5,
    "aten.gru.input": 5,
}
_N_LAYERS = 4  # of a recurrent operator, which drops between them


@contextmanager
def modes_of(net: torch.nn.Module, *, training: bool) -> Iterator[None]:
    """The module as it is trained, or as it answers, for a while.

    Every submodule gets its own mode back.
    """
    before = [(module, module.training) for module in net.modules()]
    if undecided(net) if training else net.training:
        net.train(training)
    try:
        yield
    finally:
        for module, was in before:
            module.training = was


def undecided(net: torch.nn.Module) -> bool:
    """Whether the module is in evaluation as a whole."""
    return not any(module.training for module in net.modules())


def check_modes(net: torch.nn.Module, traced: Traced) -> None:
    """Raise ModelError for a module in evaluation as a whole whose graph in training differs from
    that.
    """
    if not undecided(net):
        return
    for node, module in zip(traced.graph.nodes, traced.modules, strict=True):
        if _differs(node):
            what = f"{node.op.split('.')[1]}{f' in the module {module}' if module else ''}"
            raise ModelError(
                f"it is in evaluation as a whole, and its training differs from that: {what}.",
                next_step="Call net.train() before; what you then put into eval(), such as "
                "net.backbone.eval(), stays "
                "so in training.",
            )


def check_answers(traced: Traced) -> None:
    """Raise ModelError for an operator that draws random numbers, or takes statistics of the rows
    at hand, where the module answers.
    """
    for node, module in zip(traced.graph.nodes, traced.modules, strict=True):
        if _differs(node):
            where = f" in the module {module}" if module else ""
            if draws(node):
                raise random_answer(node.op, where)
            raise _as_in_training(
                "takes statistics of its input, not the running ones,", node.op, where
            )


def random_answer(op: str, where: str) -> ModelError:
    """The refusal of an operator that draws random numbers where the module answers."""
    return _as_in_training("draws random numbers", op, where)


def _as_in_training(does: str, op: str, where: str) -> ModelError:
    return ModelError(
        f"it {does} when it answers: {op.split('.')[1]}{where} is as in training.",
        next_step="Put that module into eval(), and pass self.training to functions such as "
        "dropout; ask self.training before other noise. (To freeze all else in training: "
        "net.train(), then eval() of each frozen part.)",
        operator=op,
    )


def draws(node: Node) -> bool:
    """Whether an operator draws random numbers."""
    return KIND_OF[node.op] != "normalisation" and _differs(node)


def _differs(node: Node) -> bool:
    """Whether an operator does something in training that it does not do in evaluation."""
    if KIND_OF[node.op] == "draw":
        return True
    if in_evaluation(node.op, node.args) == node.args:
        return False
    if KIND_OF[node.op] == "recurrent" and node.args[_N_LAYERS] == 1:
        return False
    return node.op not in _DROPPING or node.args[_DROPPING[node.op]] != 0
