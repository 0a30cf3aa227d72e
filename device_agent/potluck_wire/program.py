"""A Program: what one device does in one step, as data. The agent interprets it; so does the simulator, under virtual
time.

All intelligence is in the notebook: training pipelines, split inference, all-reduce and moving weights are all
programs over this closed set of operations. An instruction runs when its inputs are there and everything in `after` is
done. There is one compute lane and one network lane per device, so computing and sending overlap; among the ready
instructions of a lane the smallest `priority` goes first. A value is freed after its last use.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# op -> names of its attributes. `send` and `recv` are done by the agent, all others by its worker, in the compute lane.
OPERATIONS: dict[str, frozenset[str]] = {
    # Network. send: one input, to `peer`, where it is called `name`. recv: one output, the value of that name from
    # `peer`.
    "send": frozenset({"peer", "name"}),
    "recv": frozenset({"peer"}),
    # `segment` names a segment of the program's own epoch; "EPOCH/NAME" (as in "3/stage1") one of another epoch of the
    # same run that still stands, which is how state moves on a switch of plans. A name itself never holds a slash.
    # Segments. run: the segment's inputs -> its outputs; with `train`, what backward needs is kept under `key`.
    # `rows` = [start, stop, total]: which rows of micro-batch `micro_batch` these are (makes dropout independent of
    # the split).
    "run": frozenset({"segment", "key", "train", "rows", "micro_batch"}),
    # backward: gradients of the differentiable outputs -> gradients of the differentiable inputs; adds to the
    # segment's own gradients. With no inputs, the segment's first output is the loss and `scale` its gradient.
    "backward": frozenset({"segment", "key", "scale"}),
    # gradients: all gradients, then all float buffers times `share_frac`, as one flat float32 vector. step: one
    # optimizer step; an input replaces the gradients (and buffers) by such a vector first. Both leave the gradients as
    # zeros after `step`.
    "gradients": frozenset({"segment", "share_frac"}),
    "step": frozenset({"segment", "optimizer"}),
    # state / assign: read or write named state of a segment: a parameter or buffer by its name, optimizer state as
    # `exp_avg:NAME`, `exp_avg_sq:NAME`, `momentum_buffer:NAME`, `step:NAME`.
    "state": frozenset({"segment", "names"}),
    "assign": frozenset({"segment", "names"}),
    # Tensors. All along `dim`.
    "slice": frozenset({"dim", "start", "stop"}),
    "pad": frozenset({"dim", "before", "after"}),
    "concat": frozenset({"dim"}),
    "add": frozenset(),
}
NETWORK = frozenset({"send", "recv"})
SEGMENT = frozenset({"run", "backward", "gradients", "step", "state", "assign"})

MAX_INSTRUCTIONS = 100_000  # 64 micro-batches on 8 stages with a 64-way all-reduce are some 20,000


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One instruction of a program.

    `inputs` and `outputs` name values of this execution; `after` are instruction ids.
    """

    id: int
    op: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    after: tuple[int, ...] = ()
    priority: int = 0
    attrs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The instructions of one device for one step; instruction ids are their positions."""

    name: str
    instructions: tuple[Instruction, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The program as plain JSON data: short rows [op, inputs, outputs, after, priority, attrs]."""
        rows = [
            [i.op, list(i.inputs), list(i.outputs), list(i.after), i.priority, dict(i.attrs)] for i in self.instructions
        ]
        return {"name": self.name, "instructions": rows}

    def dumps(self) -> bytes:
        """The program as JSON text."""
        return json.dumps(self.to_json(), separators=(",", ":"), allow_nan=False).encode()
