"""Whether a module is ready to be exported, and whether its loss teaches its weights by backward passes of torch's."""

import copy
from collections.abc import Iterator, Sequence

import torch
from torch.autograd.function import BackwardCFunction
from torch.jit._script import RecursiveScriptModule
from torch.nn.parameter import is_lazy

from potluck.errors import ModelError


def check_module(net: torch.nn.Module) -> None:
    """Raise ModelError for modules that hold something else than tensors and Python."""
    for path, module in net.named_modules():
        where = f" (in the module {path})" if path else ""
        if any(is_lazy(tensor) for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False))):
            raise ModelError(f"it has weights without a shape yet{where}.", next_step="Run net(example) once before.")
        if isinstance(module, RecursiveScriptModule):
            raise ModelError(f"it is a scripted module{where}.", next_step="Pass the module that it was made from.")
        if type(module).__module__.startswith("torch.ao.nn.quantized"):
            raise ModelError(
                f"it is quantised{where}, and devices compute with plain tensors.",
                next_step="Pass the module as it was before.",
            )


def check_learning(module: torch.nn.Module, tensors: Sequence[torch.Tensor]) -> None:
    """Raise ModelError where no weight learns from the loss that `module` gives, or where a backward is the user's own.

    What is exported is the forward pass: a `torch.autograd.Function` would lose its backward without a word.
    """
    buffers = {name: copy.deepcopy(buffer.detach()) for name, buffer in module.named_buffers()}
    with torch.random.fork_rng(devices=()), torch.enable_grad(), torch.compiler.set_stance("force_eager"):
        loss = torch.func.functional_call(module, buffers, tuple(tensors))
    if not loss.requires_grad:
        raise ModelError(
            "no weight learns from the loss: it does not depend on any parameter that requires a gradient.",
            next_step="Leave the loss out for inference, or look for detach(), argmax or requires_grad_(False).",
        )
    own = next(_own_backwards(loss.grad_fn), "")
    if own:
        raise ModelError(
            f"the backward pass of {own} is Python code of its own, which devices do not run.",
            next_step="Write it with torch's operators. (In torch.utils.checkpoint: use_reentrant=False.)",
        )


def _own_backwards(last: object) -> Iterator[str]:
    """The names of all functions behind a gradient whose backward is written in Python."""
    seen, waiting = {last}, [last]
    while waiting:
        function = waiting.pop()
        if isinstance(function, BackwardCFunction):
            yield type(function).__name__.removesuffix("Backward")
        for before, _ in getattr(function, "next_functions", ()):
            if before is not None and before not in seen:
                seen.add(before)
                waiting.append(before)
