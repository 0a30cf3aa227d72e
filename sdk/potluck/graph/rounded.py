"""Which models can hand on smaller values between their layers, and their layers then."""

from typing import TYPE_CHECKING

from potluck.errors import ModelError
from potluck.graph.partition.rounding import BLOCKS, CASTS, rounded

if TYPE_CHECKING:
    from potluck.graph.model import Model
    from potluck.graph.partition.layers import Layers

TRAINS = ("bfloat16", "int8")


def rounded_layers(model: "Model", code: str) -> "tuple[Layers, Layers | None]":
    """Its layers for answers, and for training where it trains.

    Parameters
    ----------
    model
        Of torch's operators, not divided.
    code
        As for `Model.rounded`.

    Raises
    ------
    ModelError
        As for `Model.rounded`.
    """
    if model.kinds() != ("aten", "onnx"):
        raise ModelError(
            "what an ONNX file or a divided model hands on cannot be rounded.",
            next_step="Round a model of Model.from_torch; it can be divided afterwards.",
        )
    _check_code(code, trains=model.trains)
    modes = (False, True) if model.trains else (False,)
    chosen = [model.laid_out(train) for train in modes]
    if all(len(each.records) < 2 for each in chosen):
        raise ModelError(f"{model.name} is one layer, which hands nothing on.")
    n_inputs = len(model.traced_line().traced.given)
    inference, *training = (
        rounded(each, code, n_inputs, train=train)
        for each, train in zip(chosen, modes, strict=True)
    )
    return inference, training[0] if training else None


def _check_code(code: str, *, trains: bool) -> None:
    """Refuse what is no code, or none to train with."""
    codes = (*CASTS, BLOCKS)
    if code not in codes:
        raise ModelError(
            f"values cannot be handed on as {code!r}.",
            next_step=f"Choose one of {', '.join(codes)}.",
        )
    if trains and code not in TRAINS:
        raise ModelError(
            f"gradients as {code} would lose what is small in them.",
            next_step="Train with rounded('bfloat16') or rounded('int8'); for answers alone, leave "
            "out the loss.",
        )
