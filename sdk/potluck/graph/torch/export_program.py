"""torch.export called: the program of a user's module, or in words what in the module is in its
way.
"""

import builtins
import io
import logging
import re
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from torch.distributions import Distribution

from potluck.errors import ModelError
from potluck.graph.torch.autocast import check_autocast
from potluck.graph.torch.fixed_sizes import fixing_call
from potluck.graph.torch.length_limits import limited
from potluck.graph.torch.mixed_precision import autocasting, insert_casts
from potluck.graph.torch.own_backwards import written_out
from potluck.graph.torch.packed_sequences import kept_padded
from potluck.graph.torch.source_lines import noted
from potluck.graph.traced import ANY_LENGTH, MAX_SIZE, SEQUENCE
from potluck_wire.graph import BATCH

TRY = (
    "Does net(example) run, and without its targets? (A decoder answers by decoder_input_ids "
    "beside labels.) The first dimension of every example is the batch."
)
# a recurrent layer writes its weights into a list of its own, which is nobody's business
_OWN_WEIGHTS = (
    r"The tensor attributes? (self\.[\w.]*_flat_weights\[\d+\](, )?)+ (was|were) assigned"
)
# a CNN of 8 layers: 123 ms without what is kept, 167 with it; 40 layers of two kinds: 308 and 218
FEW_MODULES = 16
_PLAIN_LEN = builtins.len
exporting = threading.RLock()  # torch's exporters and tracers keep what they are at in globals
_LOUD = ("torch.fx.experimental.symbolic_shapes", "torch._subclasses.fake_tensor")


def export(
    module: torch.nn.Module,
    tensors: Sequence[torch.Tensor],
    dims: Sequence[int | None],
    autocast: str = "",
    *,
    lines: bool = False,
    functions: dict[type, bool] | None = None,
) -> tuple[Any, range]:
    """The program of a module for any batch, and for which lengths of the sequence, which is
    dimension `dims[i]`.

    With `autocast`, the type that torch.autocast converts to, its conversions are in the program.
    `lines`: it is noted which line of the user's source each operator comes from. `functions`: a
    backward pass of the user's own counts; gets those that are called, and whether they were
    written out. The sequence is of any
    length, unless the module itself sets a limit, as a table of positions does. Raises
    ModelError: what is in the way, and where.
    """
    check_autocast("it is made")
    lengths = ANY_LENGTH
    for x, dim in zip(tensors, dims, strict=True):
        if dim is not None and not -x.dim() <= dim < x.dim():
            raise ModelError(f"sequence_dims names dimension {dim} of a tensor that has {x.dim()}.")
    sequences = (x.shape[dim] for x, dim in zip(tensors, dims, strict=True) if dim is not None)
    example = next(sequences, 1)
    while True:
        try:
            program = _exported(module, tensors, dims, lengths, autocast, lines, functions)
            break
        except Exception as error:
            if isinstance(error, ModelError):
                raise
            narrower = limited(str(error), lengths, example)
            if narrower == lengths:
                again = partial(
                    _exported, module, tensors, dims, lengths, autocast, lines, functions
                )
                raise _in_words(error, again) from error
            lengths = narrower
    insert_casts(program, autocast)
    return program, lengths


def _exported(
    module: torch.nn.Module,
    tensors: Sequence[torch.Tensor],
    dims: Sequence[int | None],
    lengths: range,
    autocast: str,
    lines: bool,
    functions: dict[type, bool] | None,
) -> Any:
    with (
        _quiet(),
        noted(lines),
        warnings.catch_warnings(),
        autocasting(autocast),
        _kept(module),
        _unchecked(),
        _counted(),
        kept_padded(),
        nullcontext() if functions is None else written_out(functions),
    ):
        warnings.filterwarnings("ignore", _OWN_WEIGHTS)
        shapes = (_dynamic(dims, lengths),)
        return torch.export.export(module, tuple(tensors), dynamic_shapes=shapes, strict=False)


@contextmanager
def _kept(module: torch.nn.Module) -> Iterator[None]:
    """torch keeps what each operator makes of each kind of tensor for the next that is alike. Where
    few are, keeping takes a third of the time that an export takes.
    """
    few = sum(1 for _ in module.modules()) <= FEW_MODULES
    config = torch._dynamo.config
    with config.patch(fake_tensor_cache_enabled=config.fake_tensor_cache_enabled and not few):
        yield


@contextmanager
def _unchecked() -> Iterator[None]:
    """Distributions do not look at the values of their parameters, as assertions are left out."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(before)


@contextmanager
def _counted() -> Iterator[None]:
    """len(x) of a tensor is x.shape[0], which follows the batch: Python's own is a plain number."""

    def length(value: Any, /) -> Any:
        counts = isinstance(value, torch.Tensor) and value.ndim
        return value.shape[0] if counts else _PLAIN_LEN(value)

    builtins.len = length
    try:
        yield
    finally:
        builtins.len = _PLAIN_LEN


def _dynamic(dims: Sequence[int | None], lengths: range) -> tuple[dict[int, Any], ...]:
    """The sizes that change, as torch.export takes them."""
    batch = torch.export.Dim(BATCH, min=1, max=MAX_SIZE)
    sequence = torch.export.Dim(SEQUENCE, min=lengths[0], max=lengths[-1])
    return tuple({0: batch} if dim is None else {0: batch, dim: sequence} for dim in dims)


def _in_words(error: Exception, again: Callable[[], object]) -> ModelError:
    """What torch.export cannot do with a module, and what to do about it.

    `again` does it once more.
    """
    text, frames = str(error), traceback.extract_tb(error.__traceback__)
    where = where_called(frames)
    if any(frame.name == "_detect_is_causal_mask" for frame in frames):
        return ModelError(
            f"its transformer looks into its mask{where}, to find whether it is causal.",
            next_step="Say it: is_causal=True, or False, beside the mask.",
        )
    if "data-dependent" in text or "DataDependent" in type(error).__name__:
        return ModelError(
            f"its control flow depends on the data{where or ': ' + first_line(text)[:-1]}.",
            next_step="Use torch.where or masks in place of if and loops over values.",
        )
    if of_sizes := _about_sizes(text, where, again):
        return of_sizes
    if fixed := re.search(r"'(\w+)' is not differentiable with respect to argument '(\w+)'", text):
        return ModelError(
            f"{fixed[1]} has no derivative by its {fixed[2]}, which requires a gradient{where}.",
            next_step="requires_grad_(False) leaves it as it is. To learn a weight, "
            "multiply by it: "
            '(weight[target] * cross_entropy(output, target, reduction="none")).mean()',
        )
    if stranger := re.search(r"Found <class '([^']+)'> in output", text):
        return _strange_output(stranger[1])
    if "fake tensor in the exported program" in text:
        return ModelError(
            f"it cannot be exported{where}: it changes a tensor, or takes a gradient, where that "
            "cannot be followed, as weight.data.clamp_() and torch.autograd.grad() do.",
            next_step="Use the form that returns a new tensor, or torch.nn.utils.parametrize. "
            "Write a derivative out, or take it outside of the model.",
        )
    next_step = TRY
    if isinstance(error, AttributeError) and "_subclasses" in Path(frames[-1].filename).parts:
        next_step = (  # as of vmap(jacrev(f)): within torch, whatever the module does
            "torch.export fails at it by itself, also where net(example) runs: compute it in "
            "another way, as a derivative by its formula, or outside of the model."
        )
    return ModelError(
        f"it cannot be exported{where}: {type(error).__name__}: {first_line(text)}",
        next_step=next_step,
    )


def _about_sizes(text: str, where: str, again: Callable[[], object]) -> ModelError | None:
    """What to do about a module that fixes its batch or the length of its sequence."""
    if one := re.search(rf"\b{SEQUENCE} = (\d+)\s", text):
        return ModelError(
            f"it works for one length of its sequence only, {one[1]}{where}.",
            next_step="Leave out sequence_dims, and give an example as long as inputs will be. (A "
            "loop over the sequence fixes its length, and so does a table that is added as a "
            "whole.)",
        )
    if several := re.search(rf"\b{SEQUENCE} = (\d+)\*_{SEQUENCE}", text):
        return ModelError(
            f"it takes only multiples of {several[1]} as lengths of its sequence{where}.",
            next_step="Leave out sequence_dims, and pad inputs to the length of the example.",
        )
    if "Constraints violated" in text or "specialized" in text:
        call, calling = fixing_call(again)
        what = f"{call} fixes it, or bounds it" if call else "it is read as a plain number"
        return ModelError(
            f"it works only for one size of batch (or sequence), or for some: {what}"
            f"{where or where_called(calling)}.",
            next_step="x.shape[0] and len(x) follow the batch, but int() or float() of them, an "
            "`if` on them, and a loop over the rows fix it. In views and reshapes, write -1. (A "
            "recurrent layer takes the batch first by batch_first=True.)",
        )
    return None


def _strange_output(kind: str) -> ModelError:
    """An output holds an object of a class that is not made of tensors in a way that torch
    knows.
    """
    name = kind.rpartition(".")[2]
    if kind.startswith("transformers.") and "Cache" in name:
        return ModelError(
            f"its output holds a {name}, the keys and values of a model that writes text, which is "
            "no tensor.",
            next_step="Switch it off: net.config.use_cache = False; or return the logits alone, "
            "from a module around "
            "it that calls net(ids, use_cache=False).logits.",
        )
    return ModelError(
        f"its output holds a {name}, which is no tensor.",
        next_step="Return tensors, or tuples, lists, dicts or named tuples of them.",
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """torch logs and prints the half-made graph before it raises.

    What we raise instead says enough.
    """
    loggers = [logging.getLogger(name) for name in _LOUD]
    before, output = [logger.disabled for logger in loggers], io.StringIO()
    for logger in loggers:
        logger.disabled = True
    try:
        with redirect_stderr(output):
            yield
        sys.stderr.write(output.getvalue())  # it went well: these are warnings
    finally:
        for logger, was in zip(loggers, before, strict=True):
            logger.disabled = was


def where_called(frames: Sequence[traceback.FrameSummary]) -> str:
    """The innermost line of the user's own code among these: of a `forward`, else of the loss; and
    the function of torch that it calls.
    """
    called = [
        frame.name for frame in frames if Path(frame.filename) == Path(torch.nn.functional.__file__)
    ]
    calls = f" in torch.nn.functional.{called[-1]}" if called else ""
    own = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]), "<")
    frames = [frame for frame in frames if not frame.filename.startswith(own)]
    inside = [frame for frame in frames if frame.name == "forward"] or frames
    return calls + (
        f" ({Path(inside[-1].filename).name}, line {inside[-1].lineno}: {inside[-1].line})"
        if inside
        else ""
    )


def first_line(text: str) -> str:
    """The line of an error of torch's that says most."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    best = next(
        (line for line in lines if "specialized" in line or "data-dependent" in line),
        lines[0] if lines else "",
    )
    return best[:240].rstrip(".") + "."
