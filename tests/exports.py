"""Networks that are alike are exported once in a process.

Three of four seconds of `Model.from_torch` go to torch.export, and tests of runs, requests and
profiles make the same few networks hundreds of times, with weights of their own. The program of an
export knows weights by their names alone, so that of the first network is copied for the others;
all that comes after it (rules, trials of rows, layers) is done anew each time.

Alike are modules that come out the same to the byte when written down with a tensor as its type
and sizes: classes, attributes, hooks, code and closures of the loss, which weights are shared.
Whatever cannot be written down, or whose program holds tensors that the module does not name, is
exported as ever. Tests of exporting itself and `make test-long` share nothing.
"""

import copy
import hashlib
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import cloudpickle
import pytest
import torch

from potluck.graph import trace
from potluck.graph.torch import export_program

_programs: dict[bytes, tuple[Any, range]] = {}


class _Writer(cloudpickle.Pickler):  # type: ignore[misc]
    """Writes what an export depends on; nothing reads it back."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.Tensor):
            sizes = (tuple(obj.shape), obj.stride(), str(obj.dtype), str(obj.device))
            return tuple, ((type(obj), *sizes, obj.requires_grad, obj.is_leaf),)
        return super().reducer_override(obj)


def key_of(*given: Any) -> bytes | None:
    """What all exports of these have alike; None where it cannot be told."""
    modes = (torch.get_default_dtype(), torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"))
    written = io.BytesIO()
    try:
        _Writer(written).dump((given, modes))
    except Exception:  # of whatever class an object's own way to be pickled raises
        return None
    return hashlib.sha256(written.getvalue()).digest()


def _shared(program: Any) -> Any:
    """All of a program but weights, for somebody to change."""
    module = copy.deepcopy(program.graph_module)
    return SimpleNamespace(
        graph_module=module,
        graph=module.graph,
        graph_signature=program.graph_signature,
        call_spec=program.call_spec,
        constants={},
    )


def once(export: Callable[..., tuple[Any, range]]) -> Callable[..., tuple[Any, range]]:
    """This export, which copies what it gave for a module that is alike."""

    def exported(module: torch.nn.Module, *how: Any, **more: Any) -> tuple[Any, range]:
        # a copy has no line of the user's source
        key = None if more.get("lines") else key_of(module, how, sorted(more.items()))
        if key is None:
            return export(module, *how, **more)
        if key not in _programs:
            program, lengths = export(module, *how, **more)
            if set(program.constants) - {name for name, _ in module.named_buffers()}:
                return program, lengths
            _programs[key] = _shared(program), lengths
        program, lengths = _programs[key]
        return _shared(program), lengths

    return exported


@contextmanager
def shared() -> Iterator[None]:
    """Meanwhile, what is alike is exported once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace, "export", once(export_program.export))
        yield
