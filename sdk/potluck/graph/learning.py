"""Whether a module is ready to be exported, and whether its loss teaches its weights by backward passes of torch's."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction
from torch.jit._script import RecursiveScriptModule
from torch.nn.parameter import is_lazy

from potluck.errors import ModelError

from .memory import spared
from .traced import Traced


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


def check_learning(module: torch.nn.Module, tensors: Sequence[torch.Tensor], traced: Traced) -> None:
    """Raise ModelError where no weight learns from the loss that `module` gives, or other ones than in its graph.

    Also where a backward is the user's own: what is exported is the forward pass, and a `torch.autograd.Function` would
    lose its backward without a word.
    """
    with (
        spared(module),
        torch.random.fork_rng(devices=()),
        torch.enable_grad(),
        torch.compiler.set_stance("force_eager"),
    ):
        loss = module(*tensors)
    if not loss.requires_grad:
        raise ModelError(
            "no weight learns from the loss: it does not depend on any parameter that requires a gradient.",
            next_step="Leave the loss out for inference, or look for detach(), argmax or requires_grad_(False).",
        )
    functions = list(_behind(loss.grad_fn))
    own = next((type(f).__name__.removesuffix("Backward") for f in functions if isinstance(f, BackwardCFunction)), "")
    if own:
        raise ModelError(
            f"the backward pass of {own} is Python code of its own, which devices do not run.",
            next_step="Write it with torch's operators. (In torch.utils.checkpoint: use_reentrant=False.)",
        )
    _check_same({id(f.variable) for f in functions if hasattr(f, "variable")}, module, traced)


def _check_same(learned: set[int], module: torch.nn.Module, traced: Traced) -> None:
    """Raise ModelError where a call teaches other weights than the graph does (`learned`: their identities)."""
    in_graph = {id(traced.tensors[p.name]) for p in traced.graph.parameters if p.trainable}
    for name, parameter in module.named_parameters():
        if (id(parameter) in learned) != (id(parameter) in in_graph):
            way = "reaches" if id(parameter) in learned else "does not reach"
            raise ModelError(
                f"a gradient {way} {name.removeprefix('net.')} when the module is called, and in its exported graph it "
                f"{'does not' if id(parameter) in learned else 'does'}.",
                next_step="Look for branches that differ from call to call, and for torch.no_grad() around operators "
                "that may return what they are given, such as float() or contiguous(): detach() says what is meant.",
            )


def _behind(last: Any) -> Iterator[Any]:
    """All functions behind a gradient."""
    seen, waiting = {last}, [last]
    while waiting:
        function = waiting.pop()
        yield function
        for before, _ in getattr(function, "next_functions", ()):
            if before is not None and before not in seen:
                seen.add(before)
                waiting.append(before)
