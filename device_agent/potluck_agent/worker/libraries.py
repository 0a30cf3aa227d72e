"""Make torch ready for computing and nothing else: without its compiler, and with everything lazy already loaded.

Loading later would fail (the worker stands in no folder) and would count as somebody's memory and time.
"""

import operator
import sys
import types
from typing import Any

import torch

LARGE = 1 << 18  # elements: above torch's grain of 32,768, so that the work is shared among all threads
_COMPILER = "torch._dynamo"
_SYMBOLS = "torch.fx.experimental.symbolic_shapes"


def prepare(threads: int) -> None:
    """Use every part of torch that tasks use, once."""
    torch.set_num_threads(max(1, threads))
    torch.ones(LARGE).exp_()  # starts the other threads: later, no thread may be started
    stood_in = _without_compiler()
    try:
        _learn()
    except (AttributeError, ImportError):  # a torch that wants more of them than the stand-ins have
        for name in stood_in:
            sys.modules.pop(name, None)
        if _COMPILER in stood_in:
            del torch._dynamo
        _learn()


def _without_compiler() -> list[str]:
    """Stand-ins for two modules that torch loads lazily and hardly uses here (torch 2.13); returns their names.

    Its optimizers load its compiler, only to tell it to leave them alone: 1.8 s and 66 MiB. Its backward loads symbolic
    shapes, and sympy, only to compare two sizes: 1.4 s.
    """
    stand_ins: dict[str, dict[str, Any]] = {
        _COMPILER: {"disable": lambda function, *_, **__: function, "graph_break": lambda *_: None},
        _SYMBOLS: {"expect_true": bool, "sym_eq": operator.eq},
    }
    stood_in = [name for name in stand_ins if name not in sys.modules]
    for name in stood_in:
        module = types.ModuleType(name)
        module.__dict__.update(stand_ins[name])
        sys.modules[name] = module
    if _COMPILER in stood_in:
        torch._dynamo = sys.modules[_COMPILER]
    return stood_in


def _learn() -> None:
    """A forward run, a backward run from a given gradient and a step of each optimizer, all tiny."""
    torch.ones(LARGE // 256, 256) @ torch.ones(256, 1024)  # products take their buffers, of some MiB, at the first
    weight = torch.ones(8, 3, 3, 3, requires_grad=True)
    output = torch.nn.functional.conv2d(torch.ones(2, 3, 8, 8), weight).flatten(1) @ torch.ones(288, 4)
    torch.autograd.backward(output, torch.ones_like(output))
    for optimizer in (torch.optim.SGD([weight], lr=0.1, momentum=0.9), torch.optim.AdamW([weight])):
        optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())
        optimizer.zero_grad(set_to_none=True)
