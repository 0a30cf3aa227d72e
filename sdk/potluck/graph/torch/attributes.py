"""What a module holds beside its parameters and buffers: numbers, words and tensors among its
attributes, in containers, and in objects that these hold.
"""

import random
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor

_OWN = ("_parameters", "_buffers", "_modules")  # of every module: what they hold is known
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_SEVERAL = (list, tuple, deque, set, frozenset)
_CODE = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, torch.nn.Module)
# objects of these packages are tools, and no state of a model
_TOOLS = ("torch", "logging", "threading", "weakref", "_thread", "_weakref")


def held(module: torch.nn.Module) -> dict[str, Any]:
    """All that the attributes of a module and of those in it hold, by path."""
    walk = _Walk(known={id(tensor) for tensor in (*module.parameters(), *module.buffers())})
    for at, owner in module.named_modules():
        for name, value in vars(owner).items():
            if name not in _OWN:
                walk.into(f"{at}.{name}".lstrip("."), value)
    return walk.found


def own_attributes(value: Any) -> dict[str, Any]:
    """What an object itself has, in slots or not, by name."""
    slots = _slots(type(value))  # type: ignore[arg-type] # classes can be hashed
    own = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    return own | getattr(value, "__dict__", {})


def same(before: Any, after: Any) -> bool:
    """Whether what was held is held still."""
    if isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor):
        alike = (before.shape, before.dtype) == (after.shape, after.dtype)
        return alike and torch.equal(before.nan_to_num(), after.nan_to_num())
    is_nan = before != before and after != after
    return type(before) is type(after) and (is_nan or bool(before == after))


def left_by_export(found: dict[str, Any]) -> str:
    """The path of a tensor without values that tracing has left; empty where there is none."""
    return next((path for path, value in found.items() if value is FakeTensor), "")


@dataclass(slots=True)
class _Walk:
    """Goes through what is held, each object once; `known`: identities of tensors to leave out."""

    known: set[int]
    found: dict[str, Any] = field(default_factory=dict)
    seen: dict[int, Any] = field(default_factory=dict)  # kept, so that no identity is used twice

    def into(self, path: str, value: Any) -> None:
        """Note a value, and all that it holds."""
        waiting = [(path, value)]
        while waiting:
            path, value = waiting.pop()
            if isinstance(value, _PLAIN):
                self.found[path] = value
            elif type(value) is OrderedDict and not (value or vars(value)):  # such as most hooks
                self.found[f"len({path})"] = 0
            elif id(value) not in self.seen and id(value) not in self.known:
                self.seen[id(value)] = value
                if isinstance(value, torch.Tensor):
                    self._tensor(path, value)
                elif isinstance(value, random.Random):
                    self.found[path] = value.getstate()
                elif isinstance(value, np.random.Generator):
                    self.found[path] = repr(value.bit_generator.state)
                elif isinstance(value, np.random.RandomState):
                    self.found[path] = repr(value.get_state(legacy=False))
                elif isinstance(value, np.ndarray | np.generic):
                    self.found[path] = (value.shape, str(value.dtype), value.tobytes())
                elif not isinstance(value, _CODE):
                    waiting += self._parts(path, value)

    def _tensor(self, path: str, tensor: torch.Tensor) -> None:
        if isinstance(tensor, FakeTensor):
            self.found[path] = FakeTensor
        elif tensor.layout is torch.strided and not tensor.is_meta and not tensor.is_quantized:
            self.found[path] = tensor.detach().clone()

    def _parts(self, path: str, value: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(value, dict):
            self.found[f"len({path})"] = len(value)
            yield from ((f"{path}[{key!r:.60}]", part) for key, part in value.items())
        elif isinstance(value, _SEVERAL):
            self.found[f"len({path})"] = len(value)
            if not isinstance(value, set | frozenset):
                yield from ((f"{path}[{i}]", part) for i, part in enumerate(value))
        if type(value).__module__.partition(".")[0] not in _TOOLS:
            own = own_attributes(value).items()
            yield from ((f"{path}.{name}", part) for name, part in own)


@lru_cache(maxsize=1024)
def _slots(kind: type) -> tuple[str, ...]:
    """Of a class and of those that it is made from."""
    slots_of_bases = (vars(base).get("__slots__", ()) for base in kind.__mro__)
    names = [
        name for slots in slots_of_bases for name in ((slots,) if isinstance(slots, str) else slots)
    ]
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))
