"""Which line of the user's own source an exported operator comes from."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.fx import config

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)\n\s*(.*)')
_OURS = (str(Path(torch.__file__).parent), str(Path(__file__).parents[2]), "<")


@contextmanager
def noted(wanted: bool) -> Iterator[None]:
    """While it lasts, torch notes where every operator was called, or does not.

    It takes a tenth of the time of an export; so it is asked for where something is refused.
    """
    before = config.do_not_emit_stack_traces
    config.do_not_emit_stack_traces = not wanted
    try:
        yield
    finally:
        config.do_not_emit_stack_traces = before


def line_of(node: Any) -> str:
    """`model.py, line 31, in Block.forward: y = x.nonzero()`; empty where nothing was noted."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    own = [frame for frame in frames if not frame[0].startswith(_OURS)]
    if not own:
        return ""
    file, number, function, code = own[-1]
    owner = _class_of(node) if function == "forward" else ""
    return f"{Path(file).name}, line {number}, in {owner}{function}: {code.strip()}"


def _class_of(node: Any) -> str:
    """The class of the innermost module whose code is no library's, with a dot behind."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    names = [str(kind) for _, kind in stack]
    own = [n for n in names if not n.startswith(("torch.", "potluck."))]
    return f"{own[-1].rpartition('.')[2]}." if own else ""
