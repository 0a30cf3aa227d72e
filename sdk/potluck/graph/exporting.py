"""torch.export called: the program of a user's module, or in words what in the module is in its way."""

import io
import logging
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import torch

from potluck.errors import ModelError

TRY = "Does net(example) run? The first dimension of every example is the batch."
_LOUD = ("torch.fx.experimental.symbolic_shapes", "torch._subclasses.fake_tensor")


def export(module: torch.nn.Module, tensors: tuple[torch.Tensor, ...], dynamic: Any) -> Any:
    """The program of a module whose sizes are `dynamic`. Raises ModelError: what is in the way, and where."""
    try:
        with _quiet():
            return torch.export.export(module, tensors, dynamic_shapes=(dynamic,), strict=False)
    except Exception as error:
        text, where = str(error), _where(error)
        if "data-dependent" in text or "DataDependent" in type(error).__name__:
            raise ModelError(
                f"its control flow depends on the data{where}: {first_line(text)}",
                next_step="Use torch.where or masks in place of if and loops over values.",
            ) from error
        if "Constraints violated" in text or "specialized" in text:
            raise ModelError(
                f"it works only for one size of batch (or sequence){where}: {first_line(text)}",
                next_step="Write -1 or x.shape[0] for the batch in views and reshapes.",
            ) from error
        raise ModelError(
            f"it cannot be exported{where}: {type(error).__name__}: {first_line(text)}",
            next_step=TRY,
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """torch logs and prints the half-made graph before it raises; what we raise instead says enough."""
    loggers = [logging.getLogger(name) for name in _LOUD]
    before, said = [logger.disabled for logger in loggers], io.StringIO()
    for logger in loggers:
        logger.disabled = True
    try:
        with redirect_stderr(said):
            yield
        sys.stderr.write(said.getvalue())  # it went well: these are warnings
    finally:
        for logger, was in zip(loggers, before, strict=True):
            logger.disabled = was


def _where(error: BaseException) -> str:
    """The innermost line of the user's own code on the way to an error."""
    own = (str(Path(torch.__file__).parent), str(Path(__file__).parent), "<")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(own)]
    inside = [frame for frame in frames if frame.name == "forward"]
    return f" ({Path(inside[-1].filename).name}, line {inside[-1].lineno}: {inside[-1].line})" if inside else ""


def first_line(text: str) -> str:
    """The line of an error of torch's that says most."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = next(
        (line for line in lines if "specialized" in line or "data-dependent" in line), lines[0] if lines else ""
    )
    return told[:240].rstrip(".") + "."
