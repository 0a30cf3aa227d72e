"""A module and its loss as they were traced: devices keep that, so what is changed afterwards is
refused.

Values of tensors may change. All else that a trace reads is compared: classes and their forward,
hooks, which tensors there are, and attributes with what they hold, to any depth. Of an object that
comes from an installed package and is no plain data, such as a logger, the numbers and words that
it has itself are, and of one that is called there, such as a tokenizer, which it is. What nothing
can be said of, such as a tensor that the module remembers and the graph does not read, counts by
its kind alone.
"""

import hashlib
import sys
import sysconfig
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from enum import Enum
from functools import lru_cache, partial
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch

from potluck.errors import ModelError
from potluck.graph.torch.attributes import own_attributes
from potluck.graph.torch.outer_values import outer_values
from potluck.graph.torch.training_modes import undecided

OUTSIDE = " (read by "  # in names of what is no attribute
Facts = Mapping[tuple[str, str | int], Any]  # by path of the module, and name of the attribute

_OF_TORCH = frozenset({*vars(torch.nn.Module()), "_compiled_call_impl"})
_FORWARD = ("_forward_pre_hooks", "_forward_hooks")
_BACKWARD = ("_backward_pre_hooks", "_backward_hooks")
_CLASS, _PARTS, _FORWARD_HOOKS, _BACKWARD_HOOKS = range(4)  # facts that are no attributes
_OTHERS = {
    _CLASS: "has another class, or another forward, now",
    _PARTS: "has other parts now",
    _FORWARD_HOOKS: "has other hooks now",
    _BACKWARD_HOOKS: "has other hooks on its gradients now",
}
_SCALARS = (bool, int, float, complex, str, bytes, type(None), Enum, torch.dtype, torch.device)
_IDENTICAL = (type, ModuleType, torch.nn.Module, FunctionType, BuiltinFunctionType)
_DATA = (SimpleNamespace, Namespace, Mapping, Sequence)
_PACKAGES = frozenset({"site-packages", "dist-packages"})
_STDLIB = sysconfig.get_paths()["stdlib"]
_MAX_DEPTH = 32  # of lists in lists
_MOST_OBJECTS = 10_000  # which are looked into
_MOST_BYTES = 1 << 20  # of an array that is looked into
_MAX_SHOWN = 40  # characters of a value in a message
_AGAIN = (
    "Make the model again with Model.from_torch. (Values may change: with load_state_dict without "
    "assign, or in place.)"
)


@dataclass(frozen=True, slots=True)
class _Same:
    """An object that must stay this very one."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


@dataclass(frozen=True, slots=True)
class _Scalar:
    """A number, a word, or another value that cannot change itself."""

    kind: type
    text: str


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor that the graph reads: it stays the same object, but for its values."""

    tensor: _Same
    dtype: str
    trained: bool
    hooks: tuple[_Same, ...]


@dataclass(slots=True)
class _Tokens:
    """What stands for values: equal where the values are what they were.

    `read`: identities of the tensors that the graph reads. `known`: of each object that was looked
    into what stands for it, and itself, so that no identity is used twice.
    """

    read: set[int] = field(default_factory=set)
    known: dict[int, tuple[Any, Any]] = field(default_factory=dict)

    def of(self, value: Any, depth: int = 0) -> Any:
        """What stands for a value that is held so deep."""
        if isinstance(value, torch.Tensor):
            return _tensor(value) if id(value) in self.read else torch.Tensor
        if isinstance(value, _SCALARS):
            return _Scalar(type(value), repr(value))
        if isinstance(value, _IDENTICAL):
            return _Same(value)
        if isinstance(value, np.ndarray | np.generic):
            return _array(value)
        if id(value) not in self.known:
            self.known[id(value)] = type(value), value  # within itself
            if depth < _MAX_DEPTH and len(self.known) < _MOST_OBJECTS:
                self.known[id(value)] = self._within(value, depth + 1), value
        return self.known[id(value)][0]

    def _within(self, value: Any, depth: int) -> Any:
        if isinstance(value, MethodType):
            return _Same(value.__func__), self.of(value.__self__, depth)
        if isinstance(value, partial):
            parts = value.func, value.args, value.keywords
            return partial, tuple(self.of(part, depth) for part in parts)
        if isinstance(value, dict):
            pairs = value.items()
            return type(value), tuple((self.of(k, depth), self.of(v, depth)) for k, v in pairs)
        if isinstance(value, list | tuple | deque):
            return type(value), tuple(self.of(item, depth) for item in value)
        if isinstance(value, set | frozenset):
            return type(value), frozenset(self.of(item, depth) for item in value)
        return _Same(value) if callable(value) else type(value), self._attributes(value, depth)

    def _attributes(self, value: Any, depth: int) -> tuple[tuple[str, Any], ...]:
        own = own_attributes(value)
        if not _is_followed(type(value)):  # type: ignore[arg-type] # classes can be hashed
            plain = () if callable(value) else (*_SCALARS, torch.Tensor)
            own = {name: each for name, each in own.items() if isinstance(each, plain)}
        return tuple((name, self.of(each, depth)) for name, each in own.items())


@dataclass(frozen=True, slots=True)
class AsTraced:
    """What a module and its loss were when they were traced.

    Parameters
    ----------
    net, loss
        All facts of the module, and of its loss.
    modes
        Whether each part of the module is in training; none of one that is in evaluation as a
        whole, which says nothing.
    answering
        The parts that are in training when it answers.
    """

    net: Facts
    loss: Facts
    modes: Mapping[str, bool]
    answering: frozenset[str]


def as_traced(
    net: torch.nn.Module, loss: Callable[..., Any] | None, own: Mapping[str, torch.Tensor]
) -> AsTraced:
    """What they are now; `own`: the tensors that were traced."""
    tokens = _Tokens(read={id(tensor) for tensor in own.values()})
    return AsTraced(
        net=_facts(net, tokens),
        loss=_of_loss(loss, net, tokens),
        modes=_modes(net),
        answering=_answering(net),
    )


def check_as_traced(before: AsTraced, now: AsTraced, *, train: bool) -> None:
    """Raise ModelError where they are not what they were, for training or for inference."""
    _refuse(before.net, now.net, "the module", train=train)
    if not train:
        for path in sorted(before.answering ^ now.answering):
            mode = _mode(path in now.answering)
            raise _changed("the module", path or "it", f"is in {mode} now when it answers")
    else:
        _refuse(before.loss, now.loss, "the loss", train=True)
        for path, training in now.modes.items():
            if training != before.modes.get(path, True):
                raise _changed("the module", path or "it", f"is in {_mode(training)} now")


def check_tensors(before: AsTraced, now: AsTraced) -> None:
    """Raise ModelError where a tensor that was traced is not where it was."""
    for old, new, what in (
        (before.net, now.net, "the module"),
        (before.loss, now.loss, "the loss"),
    ):
        tensors = {key: fact for key, fact in old.items() if isinstance(fact, _Tensor)}
        _refuse(tensors, {key: new[key] for key in tensors if key in new}, what, train=False)


def facts_of(module: torch.nn.Module) -> Facts:
    """All of a module as it is now, whatever of it is traced."""
    own = {id(each) for each in (*module.parameters(), *module.buffers())}
    return _facts(module, _Tokens(read=own))


def check_facts(before: Facts, now: Facts, again: str) -> None:
    """Raise ModelError where one of these facts of a module that trains is not what it was; `again`
    is how to go on.
    """
    _refuse(before, now, "the module", train=True, again=again)


def _refuse(before: Facts, now: Facts, what: str, *, train: bool, again: str = _AGAIN) -> None:
    places = {path for path, _ in before} & {path for path, _ in now}
    for path, name in (*before, *(key for key in now if key not in before)):
        if name == _BACKWARD_HOOKS and not train:
            continue
        words = _difference(before.get((path, name)), now.get((path, name)), train=train)
        if words and isinstance(name, int):
            words = _OTHERS[name] if path in places else words
            raise _changed(what, path or "it", words, again)
        if words:
            raise _changed(what, f"{path}.{name}".lstrip("."), words, again)


def _changed(what: str, name: str, words: str, again: str = _AGAIN) -> ModelError:
    return ModelError(
        f"{what} was changed after its model was made: {name} {words}.", next_step=again
    )


def _difference(before: Any, now: Any, *, train: bool) -> str:
    """In words, what differs in a fact; empty where nothing does. None: it was not there."""
    if isinstance(before, _Tensor) and isinstance(now, _Tensor):
        return _difference_of_tensors(before, now, train=train)
    if before == now:
        return ""
    if before is None or now is None:
        return "is new" if before is None else "is gone"
    if isinstance(before, _Tensor):
        return "is another tensor now"
    if isinstance(before, _Scalar) and isinstance(now, _Scalar):
        return f"is {now.text:.{_MAX_SHOWN}} now, and was {before.text:.{_MAX_SHOWN}}"
    return "is another one now"


def _difference_of_tensors(before: _Tensor, now: _Tensor, *, train: bool) -> str:
    if before.tensor != now.tensor:
        return "is another tensor now"
    if before.dtype != now.dtype:
        return f"is {now.dtype} now, and was {before.dtype}"
    if train and before.trained != now.trained:
        return f"is {'trained' if now.trained else 'frozen'} now"
    if train and before.hooks != now.hooks:
        return "has other hooks now"
    return ""


def _mode(training: bool) -> str:
    return "training" if training else "evaluation"


def _modes(net: torch.nn.Module) -> dict[str, bool]:
    parts = () if undecided(net) else net.named_modules()
    return {path: module.training for path, module in parts}


def _answering(net: torch.nn.Module) -> frozenset[str]:
    """Those of a module that is in training answer as after eval(), all of them."""
    parts = () if net.training else net.named_modules()
    return frozenset(path for path, module in parts if module.training)


def _facts(module: torch.nn.Module, tokens: _Tokens, but: frozenset[int] = frozenset()) -> Facts:
    """All of a module and those in it, without those whose id is in `but`."""
    return {
        (path, name): fact
        for path, owner in module.named_modules()
        if id(owner) not in but
        for name, fact in _of_one(owner, tokens)
    }


def _of_one(owner: torch.nn.Module, tokens: _Tokens) -> Iterator[tuple[str | int, Any]]:
    yield _CLASS, (_Same(type(owner)), _Same(type(owner).forward))
    yield _FORWARD_HOOKS, _hooks(owner, _FORWARD)
    yield _BACKWARD_HOOKS, _hooks(owner, _BACKWARD)
    yield _PARTS, tuple(owner._modules)
    if not type(owner).__module__.startswith("torch."):
        yield from read_outside(type(owner).forward).items()
    held = {name: value for name, value in dict(vars(owner)).items() if name not in _OF_TORCH}
    for name, value in {**owner._parameters, **owner._buffers, **held}.items():
        yield name, tokens.of(value)


def read_outside(function: Any) -> dict[str | int, Any]:
    """The facts of what a function reads from outside, by names that no attribute has."""
    by, tokens = getattr(function, "__qualname__", ""), _Tokens()
    return {
        f"{name}{OUTSIDE}{by})": tokens.of(value) for name, value in outer_values(function).items()
    }


def _hooks(owner: torch.nn.Module, kinds: tuple[str, ...]) -> tuple[_Same, ...]:
    """Its own, and those of all modules."""
    return tuple(
        _Same(hook)
        for kind in kinds
        for hooks in (getattr(owner, kind), getattr(torch.nn.modules.module, f"_global{kind}"))
        for hook in hooks.values()
    )


def _of_loss(loss: Any, net: torch.nn.Module, tokens: _Tokens) -> Facts:
    """The facts of a loss: a module, another object that is called, or one of the methods of
    either. Of a function, plain values that it reads from outside.
    """
    while isinstance(loss, partial | MethodType):
        loss = loss.func if isinstance(loss, partial) else loss.__self__
    if isinstance(loss, torch.nn.Module):
        but = frozenset(map(id, net.modules()))
        modes: Facts = {
            (path, "training"): _Scalar(bool, repr(owner.training))
            for path, owner in loss.named_modules()
            if id(owner) not in but
        }
        return {**_facts(loss, tokens, but), **modes}
    if isinstance(loss, FunctionType | BuiltinFunctionType | type):
        return {("", name): fact for name, fact in read_outside(loss).items()}
    return {("", name): tokens.of(value) for name, value in own_attributes(loss).items()}


@lru_cache(maxsize=1024)
def _is_followed(kind: type) -> bool:
    """Whether objects of a class are plain data, or of the user's own code."""
    if is_dataclass(kind) or issubclass(kind, _DATA) or kind.__module__ == "__main__":
        return True
    path = getattr(sys.modules.get(kind.__module__), "__file__", None)
    is_installed = not path or path.startswith(_STDLIB) or _PACKAGES.intersection(Path(path).parts)
    return not is_installed


def _array(array: Any) -> Any:
    """An array's type, shape and numbers; of a large one without these."""
    found = type(array), array.shape, str(array.dtype)
    if array.nbytes > _MOST_BYTES or array.dtype.hasobject:
        return found
    return *found, hashlib.blake2b(array.tobytes()).digest()


def _tensor(tensor: torch.Tensor) -> _Tensor:
    hooks = getattr(tensor, "_backward_hooks", None) or {}
    later = getattr(tensor, "_post_accumulate_grad_hooks", None) or {}
    return _Tensor(
        tensor=_Same(tensor),
        dtype=str(tensor.dtype).removeprefix("torch."),
        trained=tensor.requires_grad,
        hooks=tuple(_Same(hook) for hook in (*hooks.values(), *later.values())),
    )
