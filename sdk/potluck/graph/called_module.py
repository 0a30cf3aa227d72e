"""A user's module, and with its loss one, called with all tensors by place: what is exported."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from potluck.graph.loss.batch_reductions import WrittenOutLosses
from potluck.graph.loss.decompositions import l1_weight_kept
from potluck.graph.torch.own_loss import OwnLoss, names_of


class ModuleWithLoss(torch.nn.Module):
    """The model and its loss as one module.

    Parameters
    ----------
    net
        The model.
    loss
        Of its answer and the targets, or of all it is called with.
    n_inputs
        How many of the tensors are inputs; targets follow.
    keywords
        The name that each input goes by, empty where it goes by place.
    """

    def __init__(
        self,
        net: torch.nn.Module,
        loss: Callable[..., torch.Tensor] | OwnLoss,
        n_inputs: int,
        keywords: Sequence[str],
    ) -> None:
        super().__init__()
        self.net = net
        self.loss = loss
        self._n_inputs = n_inputs
        self._keywords = tuple(keywords)

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Its loss.

        Parameters
        ----------
        tensors
            Inputs and targets in their order.
        """
        with l1_weight_kept(), self._as_devices_have_it():
            if isinstance(self.loss, OwnLoss):
                names = names_of(self.loss, self._n_inputs, self._keywords)
                return _one_number(self.loss.of(_called(self.net, tensors, names)))
            answer = _called(self.net, tensors[: self._n_inputs], self._keywords)
            return _one_number(self.loss(answer, *tensors[self._n_inputs :]))

    @staticmethod
    def _as_devices_have_it() -> AbstractContextManager[Any]:
        """What is exported has torch's losses written out; what it is compared with has its own."""
        return WrittenOutLosses() if torch.compiler.is_exporting() else nullcontext()


def _one_number(loss: Any) -> Any:
    """A loss of one element without its dimensions, with which `backward` takes it, too."""
    sizes = loss.shape if isinstance(loss, torch.Tensor) else ()
    is_one = bool(sizes) and all(isinstance(size, int) and size == 1 for size in sizes)
    return loss.reshape(()) if is_one else loss


class ModuleAlone(torch.nn.Module):
    """The model, called as `ModuleWithLoss` calls it, so that names come out alike.

    Parameters
    ----------
    net
        The model.
    keywords
        The name that each input goes by, empty where it goes by place.
    """

    def __init__(self, net: torch.nn.Module, keywords: Sequence[str]) -> None:
        super().__init__()
        self.net, self._keywords = net, tuple(keywords)

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Its answer.

        Parameters
        ----------
        tensors
            Inputs in their order.
        """
        with l1_weight_kept():
            return _called(self.net, tensors, self._keywords)


def _called(net: torch.nn.Module, inputs: Sequence[torch.Tensor], keywords: Sequence[str]) -> Any:
    """The module's answer; `keywords`: the name that each input goes by, empty (or none) where it
    goes by place.
    """
    named = list(zip(keywords or [""] * len(inputs), inputs, strict=True))
    return net(*[x for name, x in named if not name], **{name: x for name, x in named if name})
