"""The module of somebody else's loop, while devices train a copy of it as it was: what a step reads
of it stays so, and its weights are changed by devices alone.
"""

import copy
import zlib
from collections.abc import Iterator, Mapping
from functools import wraps
from inspect import getattr_static
from itertools import chain
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from potluck.errors import ModelError
from potluck.graph.torch.change_detection import OUTSIDE, Facts, check_facts, facts_of, read_outside

_PATH = "_path_of_watched"  # an attribute, so that copies of the copy have it
_AGAIN = (
    "Change it between two trainings: the next one begins with the module as it is then. Limits "
    "and rates are the loop's own, and may change."
)


class WatchedModule:
    """A module, and the copy of it that is traced. The copy notes which attributes are read of it.

    Parameters
    ----------
    module
        As it is now. The copy has the same parameters and buffers.
    *without
        What attributes of it refer to and the copy has None for.
    step
        The method that is traced.
    unknown
        Attributes that no step may read, as the loop changes them.
    aside
        What the loop itself notes in objects that the module has, such as its configuration.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        *without: object,
        step: str = "forward",
        unknown: frozenset[str] = frozenset(),
        aside: frozenset[str] = frozenset(),
    ) -> None:
        self._module, self._step = module, step
        self._unknown, self._aside = unknown, aside
        self._read: set[tuple[str, str]] = set()
        self._is_tracing = False
        shared = {id(each): each for each in chain(module.parameters(), module.buffers())}
        absent = {id(each): None for each in without}
        self.copy: Any = copy.deepcopy(module, shared | absent)
        for path, part in [*self.copy.named_modules()]:
            if not type(part).__module__.startswith("torch."):
                part.__dict__[_PATH] = path
                part.__class__ = self._noting(type(part), "" if path else step)
        self._before: Facts = {}
        self._modes: Mapping[str, bool] = {}
        self._contents: Mapping[str, tuple[int, int, int]] = {}

    def _noting(self, kind: Any, step: str) -> type:
        """The same class, of which each attribute that is read within the step is noted."""

        def noted(part: Any, name: str) -> Any:
            if self._is_tracing:
                if name in self._unknown:
                    raise ModelError(
                        f"a step reads {name} of its module, which devices do not know: they "
                        "compute the step as it was traced, on other batches.",
                        next_step="Have the step depend on its batch alone: give what changes as a "
                        "part of the batch; rates belong to a scheduler, and logs into hooks.",
                    )
                path = object.__getattribute__(part, "__dict__").get(_PATH)
                self._read.add((path, name))
            return kind.__getattribute__(part, name)

        own: dict[str, Any] = {"__getattribute__": noted, "__module__": kind.__module__}
        if step:

            @wraps(getattr(kind, step))
            def traced(part: Any, *args: Any, **kwargs: Any) -> Any:
                self._is_tracing = True
                try:
                    return getattr(kind, step)(part, *args, **kwargs)
                finally:
                    self._is_tracing = False

            own[step] = traced
        return type(kind.__name__, (kind,), own | {"__qualname__": kind.__qualname__})

    def begin(self) -> None:
        """The copy was traced: from now on the module stays as it is."""
        self._before, self._modes = self._facts(), self._modes_now()
        self.fetched()

    def fetched(self) -> None:
        """The module has the weights of devices now."""
        self._contents = self._contents_now()

    def check(self) -> None:
        """See that a step of now would be the one that was traced.

        Raises
        ------
        ModelError
            What it reads of the module is not what it was, or weights were changed here.
        """
        now = self._facts()
        names = {key for key in {**self._before, **now} if self._counts(key)}
        before = {key: fact for key, fact in self._before.items() if key in names}
        check_facts(before, {key: now[key] for key in names if key in now}, _AGAIN)
        for path, training in self._modes_now().items():
            if training != self._modes.get(path, training):
                raise ModelError(
                    f"{path or 'the module'} is in {'training' if training else 'evaluation'} now; "
                    "devices train it as it was when the training began.",
                    next_step=_AGAIN,
                )
        self.check_weights()

    def check_weights(self) -> None:
        """See that the numbers in it are those that it had when it was traced, or got of devices.

        Raises
        ------
        ModelError
            They are not.
        """
        for name, content in self._contents_now().items():
            if content != self._contents.get(name, content):
                raise ModelError(
                    f"{name} was changed in the module here, and devices go on with theirs.",
                    next_step=_AGAIN,
                )

    def _counts(self, key: tuple[str, str | int]) -> bool:
        """Whether a fact may matter: it is no attribute, one that is read, or of torch's own."""
        path, name = key
        if isinstance(name, int) or (path, name) in self._read or OUTSIDE in name:
            return True
        try:
            return type(self._module.get_submodule(path)).__module__.startswith("torch.")
        except AttributeError:  # it is there no more
            return True

    def _facts(self) -> Facts:
        found: dict[tuple[str, str | int], Any] = {**facts_of(self._module)}
        found.update(self._of_classes())
        step = getattr(type(self._module), self._step)
        found.update({("", name): fact for name, fact in read_outside(step).items()})
        return {key: _without(fact, self._aside) for key, fact in found.items()}

    def _of_classes(self) -> Iterator[tuple[tuple[str, str], Any]]:
        """What is read of a class, where that is plain."""
        for path, owner in self._module.named_modules():
            for name in [name for place, name in self._read if place == path]:
                value = getattr_static(type(owner), name, None)
                if name not in vars(owner) and isinstance(value, int | float | complex | str):
                    yield (path, name), value

    def _modes_now(self) -> Mapping[str, bool]:
        return {path: part.training for path, part in self._module.named_modules()}

    def _contents_now(self) -> dict[str, tuple[int, int, int]]:
        """Of parameters, and of buffers and tensors in attributes that are read."""
        found: dict[str, torch.Tensor] = dict(self._module.named_parameters())
        for path, owner in self._module.named_modules():
            buffers = owner.named_buffers(recurse=False)
            kept = {name: buffer for name, buffer in buffers if self._counts((path, name))}
            found |= {f"{path}.{name}".lstrip("."): buffer for name, buffer in kept.items()}
        for path, owner in self._module.named_modules():
            for name in [name for place, name in self._read if place == path]:
                for i, leaf in enumerate(tree_leaves(vars(owner).get(name))):
                    if isinstance(leaf, torch.Tensor):
                        found[f"{path}.{name} ({i})".lstrip(".")] = leaf
        return {name: _content(tensor.detach()) for name, tensor in found.items()}


def _without(fact: Any, names: frozenset[str]) -> Any:
    """What stands for an object (its class, and pairs of name and value), without these names."""
    if not (names and isinstance(fact, tuple) and len(fact) == 2 and isinstance(fact[0], type)):
        return fact
    pairs = fact[1]
    return fact[0], tuple(
        each
        for each in pairs
        if not (isinstance(each, tuple) and each[:1] in {(n,) for n in names})
    )


def _content(tensor: torch.Tensor) -> tuple[int, int, int]:
    """Where a tensor's numbers are, how many, and a checksum of their bits: changes through
    `.data` are seen, too, and numbers that change places.
    """
    bits = tensor.contiguous().reshape(-1).view(torch.uint8)
    return tensor.data_ptr(), tensor.numel(), zlib.crc32(bits.cpu().numpy().data)
