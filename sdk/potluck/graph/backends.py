"""As what a device gets its piece of a model: a graph of torch's operators, or ONNX where it has
onnxruntime alone.
"""

from collections.abc import Iterable
from typing import Any

from potluck.errors import ModelError, PlanError
from potluck_wire.statement import BACKEND_OF

# how often weights are there: onnxruntime puts them in an order of its own
WEIGHT_COPIES = {"aten": 1, "onnx": 2}


def kind_on(model: Any, device: str, backends: Iterable[str], *, train: bool) -> str:
    """The best kind of piece that a device with these backends can compute.

    Parameters
    ----------
    model
        The model.
    device
        Its name, for errors.
    backends
        What it computes with.
    train
        Whether the piece is trained.

    Raises
    ------
    PlanError
        Where it can compute none; says what it has and what is needed.
    """
    has = tuple(backends)
    kinds = model.kinds(train)
    for kind in kinds:
        if BACKEND_OF[kind] in has:
            return str(kind)
    needed = " or ".join(BACKEND_OF[kind] for kind in kinds)
    raise PlanError(
        f"it has {' and '.join(has) or 'nothing that computes'}; "
        f"{'training' if train else 'this model'} needs {needed}.",
        device=device,
        next_step=f"Install {needed} there, or leave the device out."
        + (" model.as_torch() would run on either." if kinds == ("onnx",) else ""),
    )


def document_for(
    model: Any, device: str, kind: str, start: int, stop: int, *, train: bool
) -> bytes:
    """Layers [start, stop) as a piece of that kind.

    Parameters
    ----------
    model
        The model.
    device
        Who needs them so.
    kind
        Of the piece.
    start, stop
        Layers [start, stop).
    train
        Whether they are trained.

    Raises
    ------
    ModelError
        They cannot be written so; names the device.
    """
    try:
        return bytes(model.document(start, stop, train=train, kind=kind))
    except ModelError as error:
        raise ModelError(str(error), device=device) from error
