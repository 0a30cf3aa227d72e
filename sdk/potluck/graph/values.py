"""The values that a model answers by: whether they are what they were, and a copy of them for
whoever goes on with those.
"""

from copy import copy
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from potluck.graph.model import Model
    from potluck.graph.torch.value_marks import Marks

DEPLOY_AGAIN = "Deploy again: home.deploy(plan, model) takes the values of now."


def check_values(model: "Model", before: "Marks", again: str = DEPLOY_AGAIN) -> None:
    """Whether the tensors of a model have the values that they had, as far as their marks tell.

    Parameters
    ----------
    model
        Of torch or ONNX.
    before
        What its `value_marks` said then.
    again
        How to go on with the values of now.

    Raises
    ------
    ModelError
        One was changed in place since.
    """
    if not before:
        return
    from potluck.graph.torch import value_marks

    value_marks.check_values(before, model.value_marks(), again)


def check_as_sent(model: "Model", before: "Marks", again: str = DEPLOY_AGAIN) -> None:
    """Whether a model is what devices answer by: as it was traced, with the values of then.

    Parameters
    ----------
    model, before, again
        As for `check_values`.

    Raises
    ------
    ModelError
        It was changed since.
    """
    model.check_as_traced()
    check_values(model, before, again)


def with_values_of_now(model: "Model") -> "Model":
    """A model that answers by the values of now, whatever becomes of the module's; itself where
    nobody changes them.

    Parameters
    ----------
    model
        Of torch or ONNX.
    """
    if not model.value_marks():
        return model
    kept, names = copy(model), {*model.state_names(0, len(model.layers()))}
    kept.kept_values = {name: t.clone() for name, t in model.state().items() if name in names}
    return kept
