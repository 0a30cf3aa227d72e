"""Make torch ready for computing and nothing else: without its compiler, and with everything lazy already loaded.

Loading later would fail (the worker stands in no folder) and would count as somebody's memory and time.
"""

import sys
import types

import torch

LARGE = 1 << 18  # elements: above torch's grain of 32,768, so that the work is shared among all threads
_COMPILER = "torch._dynamo"


def prepare(threads: int) -> None:
    """Use every part of torch that tasks use, once."""
    torch.set_num_threads(max(1, threads))
    torch.ones(LARGE).exp_()  # starts the other threads: later, no thread may be started
    if _COMPILER not in sys.modules:
        _without_compiler()
    try:
        _learn()
    except (AttributeError, ImportError):  # a torch that wants more of its compiler than the stand-in has
        sys.modules.pop(_COMPILER, None)
        del torch._dynamo
        _learn()


def _without_compiler() -> None:
    """torch's optimizers load its compiler, only to tell it to leave them alone: 1.8 s and 66 MiB (torch 2.13)."""
    stand_in = types.ModuleType(_COMPILER)
    stand_in.__dict__.update(disable=lambda function, *_, **__: function, graph_break=lambda *_: None)
    sys.modules[_COMPILER] = stand_in
    torch._dynamo = stand_in


def _learn() -> None:
    """A forward run, a backward run and a step of each optimizer, all tiny."""
    weight = torch.ones(8, 3, 3, 3, requires_grad=True)
    output = torch.nn.functional.conv2d(torch.ones(2, 3, 8, 8), weight).flatten(1) @ torch.ones(288, 4)
    torch.autograd.backward(output.sum())
    for optimizer in (torch.optim.SGD([weight], lr=0.1, momentum=0.9), torch.optim.AdamW([weight])):
        optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())
        optimizer.zero_grad(set_to_none=True)
