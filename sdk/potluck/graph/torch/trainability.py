"""Whether a module is ready to be exported, and whether its loss teaches its weights by backward
passes of torch's.
"""

import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.jit._script import RecursiveScriptModule
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from potluck.errors import ModelError
from potluck.graph.partition.random_masks import draws

from ..traced import Traced
from .export_program import where_called
from .statefulness import spared

_SHOWING = 1e3  # gradients so large that one which limits them shows
_LOOPS = "torch._higher_order_ops."  # are written out, or refused by name


def check_module(net: torch.nn.Module) -> None:
    """Raise ModelError for modules that hold something else than tensors and Python."""
    for path, module in net.named_modules():
        where = f" (in the module {path})" if path else ""
        if any(
            is_lazy(tensor)
            for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False))
        ):
            raise ModelError(
                f"it has weights without a shape yet{where}.",
                next_step="Run net(example) once before.",
            )
        if isinstance(module, RecursiveScriptModule):
            raise ModelError(
                f"it is a scripted module{where}.",
                next_step="Pass the module that it was made from.",
            )
        if type(module).__module__.startswith("torch.ao.nn.quantized"):
            raise ModelError(
                f"it is quantised{where}, and devices compute with plain tensors.",
                next_step="Pass the module as it was before.",
            )


def check_memory(net: torch.nn.Module) -> None:
    """Raise ModelError where a weight that is trained shares memory with another tensor of the
    module: on devices each has its own.
    """
    spans: list[tuple[int, int, str, bool]] = []
    seen: set[int] = set()
    for name, tensor in (*net.named_parameters(), *net.named_buffers()):
        if id(tensor) in seen or tensor.layout is not torch.strided or not tensor.numel():
            continue
        seen.add(id(tensor))
        last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
        start = tensor.data_ptr()
        stop = start + (last + 1) * tensor.element_size()
        if start:  # of meta tensors nobody knows
            spans.append((start, stop, name, tensor.requires_grad))
    reaches: list[tuple[int, int, str, bool]] = []
    for span in sorted(spans):
        reaches = [before for before in reaches if before[1] > span[0]]
        for _, _, name, trained in reaches:
            if trained or span[3]:
                raise ModelError(
                    f"{name} and {span[2]} share memory, and one of them is trained: on devices "
                    "each would have its own.",
                    next_step="Tie weights by using the same Parameter in both places, as in "
                    "decoder.weight = encoder.weight.",
                )
        reaches.append(span)


def check_norms(net: torch.nn.Module) -> None:
    """Raise ModelError for a normalisation that is to average its statistics over all batches that
    it ever saw.
    """
    for name, module in net.named_modules():
        path = name.removeprefix("net").removeprefix(".")
        if (
            isinstance(module, _BatchNorm)
            and module.training
            and module.momentum is None
            and module.track_running_stats
        ):
            raise ModelError(
                f"{type(module).__name__}{f' (the module {path})' if path else ''} averages its "
                "statistics over all "
                "batches that it ever saw (momentum=None), which devices do not compute.",
                next_step="Give it a momentum, such as 0.1; or eval(), which keeps its statistics "
                "as they are.",
            )


def check_learning(
    module: torch.nn.Module,
    tensors: Sequence[torch.Tensor],
    traced: Traced,
    functions: Mapping[type, bool],
) -> None:
    """Raise ModelError where no weight learns from the loss that `module` gives, or other ones than
    in its graph.

    Also where a backward is the user's own, unless `functions` says that it was written out: what
    is exported is the forward pass, and a `torch.autograd.Function` would lose its backward without
    a word.
    """
    for name, parameter in module.named_parameters():
        if _is_changed_when_summed(parameter):
            raise _hook_on(name)
    hooked: list[object] = []
    applied: dict[type, str] = {}
    seeding: list[str] = []
    with _noting_hooks(hooked), _noting_functions(applied), _noting_seeds(seeding):
        loss = _called(module, tensors)
    _check_gradients(module, hooked)
    if seeding and draws(traced, range(len(traced.graph.nodes))):
        raise ModelError(
            f"it seeds what it draws in each call{seeding[0]}: devices draw by the seed of the run "
            "and the step.",
            next_step="Leave torch.manual_seed out, and say home.deploy(plan, seed=1); noise that "
            "stays the same is a buffer.",
        )
    if not isinstance(loss, torch.Tensor):
        raise ModelError(
            f"the loss must be one number, got a {type(loss).__name__}.",
            next_step="Return the tensor alone.",
        )
    if not loss.requires_grad:
        raise ModelError(
            "no weight learns from the loss: it does not depend on any parameter that requires a "
            "gradient.",
            next_step="Leave the loss out for inference, or look for detach(), argmax or "
            "requires_grad_(False).",
        )
    strange = {
        cls: line
        for cls, line in applied.items()
        if not functions.get(cls, False) and not cls.__module__.startswith(_LOOPS)
    }
    behind = list(_behind(loss.grad_fn))
    for function in behind:
        called = getattr(function, "_forward_cls", None)  # of a user's own alone
        if called in strange:
            raise _own_backward(called, strange)
    weights = [f.variable for f in behind if hasattr(f, "variable")]
    known = {id(tensor) for tensor in (*module.parameters(), *tensors)}
    strangers = [w for w in weights if id(w) not in known]
    kept = _of_each_call(strangers, module, tensors) if strangers else []
    if kept:
        raise ModelError(
            f"a gradient reaches a tensor {list(kept[0].shape)} that belongs to no module, so "
            "that nothing would train it.",
            next_step="Make it a parameter of the network, or of a loss that is a torch.nn.Module; "
            "requires_grad_(False) leaves it as it is.",
        )
    _check_same({id(weight) for weight in weights}, module, traced, strange)


def _called(module: torch.nn.Module, tensors: Sequence[torch.Tensor]) -> Any:
    """The loss of a call that leaves everything as it was, inputs too."""
    with spared(module), torch.random.fork_rng(devices=()), torch.enable_grad():
        return module(*tensors)


def _of_each_call(
    strangers: Sequence[torch.Tensor], module: torch.nn.Module, tensors: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Those that are there again when the module is called once more. The others it has made
    itself: their gradient goes with them.
    """
    again = {
        id(f.variable) for f in _behind(_called(module, tensors).grad_fn) if hasattr(f, "variable")
    }
    return [tensor for tensor in strangers if id(tensor) in again]


def _own_backward(cls: type, applied: Mapping[type, str]) -> ModelError:
    name = cls.__name__
    return ModelError(
        f"the backward pass of {name} is Python code of its own, which devices do not "
        f"run{applied[cls]}.",
        next_step="Call torch.utils.checkpoint with use_reentrant=False."
        if name == "CheckpointFunction"
        else "Write it with torch's operators. One that multiplies the gradient of a single value "
        "is taken: grad * factor, grad.masked_fill(mask, 0).",
    )


@contextmanager
def _noting_functions(applied: dict[type, str]) -> Iterator[None]:
    """While it lasts, `applied` gets every autograd function that is called, and by which line."""
    apply = vars(torch.autograd.Function)["apply"]

    def apply_noted(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if cls not in applied:
            applied[cls] = where_called(traceback.extract_stack())
        return apply.__get__(None, cls)(*args, **kwargs)

    torch.autograd.Function.apply = classmethod(apply_noted)  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        torch.autograd.Function.apply = apply  # type: ignore[method-assign]


@contextmanager
def _noting_seeds(seeding: list[str]) -> Iterator[None]:
    """While it lasts, `seeding` gets every line that seeds torch's random numbers."""
    before = torch.manual_seed

    def seed_noted(seed: Any) -> torch.Generator:
        seeding.append(where_called(traceback.extract_stack()))
        return before(seed)

    torch.manual_seed = torch.random.manual_seed = seed_noted
    try:
        yield
    finally:
        torch.manual_seed = torch.random.manual_seed = before


@contextmanager
def _noting_hooks(hooked: list[object]) -> Iterator[None]:
    """While it lasts, `hooked` gets every hook that is put on the gradient of a tensor."""
    register = torch.Tensor.register_hook

    def register_noted(tensor: torch.Tensor, hook: Any) -> Any:
        hooked.append(hook)
        return register(tensor, hook)  # type: ignore[no-untyped-call]

    torch.Tensor.register_hook = register_noted  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.Tensor.register_hook = register  # type: ignore[method-assign]


def _check_gradients(module: torch.nn.Module, hooked: Sequence[object]) -> None:
    """Raise ModelError where gradients are not those of the operators: a hook of the user's own, or
    one that counts rows of the whole batch.
    """
    where = ["a tensor of the forward pass"] if hooked else []
    where += [
        name
        for name, parameter in module.named_parameters()
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None)
    ]
    if where:
        raise _hook_on(where[0])
    for name, part in module.named_modules():
        if getattr(part, "scale_grad_by_freq", False):
            raise ModelError(
                f"the gradient of {name} counts how often a row is in the batch "
                "(scale_grad_by_freq), which no device knows of the others' rows.",
                next_step="Leave scale_grad_by_freq out.",
            )


def _hook_on(where: str) -> ModelError:
    return ModelError(
        f"a hook is on the gradient of {where}: devices run no Python code, so that it would be "
        "lost.",
        next_step="Remove it (handle.remove()); freeze with requires_grad_(False), scale in the "
        "loss.",
    )


def _is_changed_when_summed(parameter: torch.nn.Parameter) -> bool:
    """Whether a hook on the node that sums up its gradients changes them. Nothing lists such hooks,
    so it is tried; somebody keeps the node where it has one.
    """
    if not (parameter.requires_grad and parameter.is_leaf and parameter.is_floating_point()):
        return False
    node = _summing(parameter)
    if node is None:
        return False  # in inference mode
    node.metadata[_summing] = True
    del node
    if _summing not in _summing(parameter).metadata:
        return False  # nobody kept it: this is another one
    before, grad = parameter.detach().clone(), parameter.grad
    given = torch.rand(parameter.shape, generator=torch.Generator().manual_seed(0))
    given = (given * _SHOWING).to(parameter)
    parameter.grad = None
    try:
        torch.autograd.backward(parameter, given.clone())
        return parameter.grad is None or not (
            torch.equal(parameter.grad, given) and torch.equal(parameter.detach(), before)
        )
    except Exception:  # what a hook raises is its author's
        return True
    finally:
        parameter.grad = grad
        parameter.detach().copy_(before)


def _summing(parameter: torch.nn.Parameter) -> Any:
    """The node that sums up its gradients; None where there is none."""
    with torch.enable_grad():
        view = parameter.view_as(parameter)
    return None if view.grad_fn is None else view.grad_fn.next_functions[0][0]


def _check_same(
    learned: set[int], module: torch.nn.Module, traced: Traced, applied: Mapping[type, str]
) -> None:
    """Raise ModelError where a call teaches other weights than the graph does (`learned`: their
    identities; `applied`: functions that may be why).
    """
    in_graph = {id(traced.tensors[p.name]) for p in traced.graph.parameters if p.trainable}
    for name, parameter in module.named_parameters():
        if (id(parameter) in learned) != (id(parameter) in in_graph):
            if applied:
                raise _own_backward(next(iter(applied)), applied)
            way = "reaches" if id(parameter) in learned else "does not reach"
            raise ModelError(
                f"a gradient {way} {name.removeprefix('net.')} when the module is called, and in "
                f"its exported graph it {'does not' if id(parameter) in learned else 'does'}.",
                next_step="Look for branches that differ from call to call, and for "
                "torch.no_grad() around operators "
                "that may return what they are given, such as float() or contiguous(): detach() "
                "says what is meant.",
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
