"""A loss that the module computes itself, of inputs and targets that it is given by name: a part of
its answer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from potluck.errors import ModelError
from potluck.graph.arguments import USUAL_TARGETS, parameters


@dataclass(frozen=True, slots=True)
class OwnLoss:
    """The part of a module's answer that is its loss: by name (or attribute), or by place.

    `targets`: the names by which `forward` takes its targets.
    """

    key: str | int
    targets: tuple[str, ...] = ()

    def of(self, answer: Any) -> Any:
        """The loss in an answer.

        Raises
        ------
        ModelError
            There is none.
        """
        if isinstance(self.key, str) and not isinstance(answer, Mapping):
            found = getattr(answer, self.key, None)
        else:
            try:
                found = answer[self.key]
            except (KeyError, IndexError, TypeError):
                found = None
        if found is None:
            names = f" ({', '.join(map(str, answer))})" if isinstance(answer, Mapping) else ""
            raise ModelError(
                f"what the module returns has no {self.key!r}: it is a {type(answer).__name__}"
                f"{names}.",
                next_step='loss="loss" is the part of that name of what forward returns, loss=0 '
                "the first; else pass a function, called as loss(output, *targets).",
            )
        return found


def own_loss(
    net: Any, loss: Any, inputs: Any, targets: Any, *, compares_rows: bool = False
) -> tuple[Any, Any, Any]:
    """The loss, inputs and targets of an example, where the loss is a part of the answer: targets
    that are among the inputs under a usual name are taken out of them.

    All others as they are. Without targets the loss is in every answer, a number of all its rows:
    so `compares_rows` must have been said.

    Raises
    ------
    ModelError
        It is none; or targets have no names, or forward does not take them.
    """
    if isinstance(loss, bool) or not isinstance(loss, str | int):
        if loss is not None and (isinstance(loss, type) or not callable(loss)):
            raise ModelError(
                f"the loss is called as loss(output, *targets), got {loss!r}.",
                next_step="Pass a function or an object, such as torch.nn.CrossEntropyLoss().",
            )
        return loss, inputs, targets
    if not isinstance(targets, Mapping) and len(targets) == 0 and isinstance(inputs, Mapping):
        names = [name for name in USUAL_TARGETS if name in inputs]
        targets = {name: inputs[name] for name in names}
        inputs = {name: value for name, value in inputs.items() if name not in names}
    if not isinstance(targets, Mapping) or not (targets or compares_rows):
        raise ModelError(
            "the module computes its loss itself, and it is not known of which targets.",
            next_step='Name them: example_targets={"labels": labels}. A loss of the inputs alone '
            "needs these by name, and compares_rows=True.",
        )
    known = [p.name for p in parameters(net)]
    takes_more = any(p.kind is p.VAR_KEYWORD for p in parameters(net))
    strangers = [name for name in targets if name not in known]
    if strangers and not takes_more:
        raise ModelError(
            f"the target is called {strangers[0]}; forward takes {', '.join(known)}.",
            next_step="Call it as forward does.",
        )
    return replace(OwnLoss(loss), targets=tuple(targets)), inputs, targets


def names_of(loss: OwnLoss, n_inputs: int, keywords: Sequence[str]) -> tuple[str, ...]:
    """The name by which the module gets each input, then target; empty where it goes by place."""
    return (*(keywords or [""] * n_inputs), *loss.targets)
