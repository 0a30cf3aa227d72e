"""A Program: what one device does in one step, as data. The agent interprets it; so does the
simulator, under virtual time.

All intelligence is in the notebook: training pipelines, split inference, all-reduce and moving
weights are all programs over this closed set of operations. An instruction runs when its inputs are
there and everything in `after` is done; both name earlier instructions only. There is one compute
queue and one send queue per device, so computing and sending overlap; among the ready instructions
of a queue the smallest `priority` goes first. A value is freed after its last use.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from potluck_wire.checks import anything
from potluck_wire.documents import dump, parse
from potluck_wire.errors import WireCode, WireError
from potluck_wire.frames import Buffer
from potluck_wire.limits import MAX_DIMENSIONS, MAX_INT, is_identifier, is_value_name

# op -> names of its attributes. `send` and `recv` are done by the agent, all others by its worker,
# in the compute queue.
OPERATIONS: dict[str, frozenset[str]] = {
    # Network. send: one input, to `peer`, where it is called `name`. recv: one output, the value of
    # that name from `peer`. A send may also say `to` = "EPOCH/PROGRAM": the value is for the same
    # step of that program of the same run, over there; this program goes on at once, and does not
    # fail where the value cannot be had.
    "send": frozenset({"peer", "name"}),
    "recv": frozenset({"peer"}),
    # `segment` names a segment of the program's own epoch; "EPOCH/NAME" (as in "3/stage1") one of
    # another epoch of the same run that still stands, which is how state moves on a switch of
    # plans. A name itself never holds a slash. Segments. run: the segment's inputs -> its outputs;
    # with `train`, what backward needs is kept under `key`. `rows` = [start, stop, total]: which
    # rows of micro-batch `micro_batch` these are (makes dropout independent of the split). `takes`,
    # where it is there, says of each input which of its entries [start, stop) along the first
    # dimension are meant; null: all of them. So the inputs of a whole batch may come as one value.
    # `recompute` (since 1.8): nothing but the inputs is kept, and `backward` computes the forward
    # again, with the same dropout, leaving buffers alone. `split` (since 1.9): the backward comes
    # in two parts.
    "run": frozenset({"segment", "key", "train", "rows", "micro_batch"}),
    # backward: gradients of the differentiable outputs -> gradients of the differentiable inputs;
    # adds to the segment's own gradients. With no inputs, the segment's first output is the loss
    # and `scale` its gradient.
    "backward": frozenset({"segment", "key", "scale"}),
    # Since 1.9 in two parts, of a `run` with `split`. backward_input: as backward, but gradients of
    # weights that are computations of their own wait. backward_weight, after it and under the same
    # `key`: adds them to the segment's own gradients. Both together give the bits of `backward`.
    "backward_input": frozenset({"segment", "key", "scale"}),
    "backward_weight": frozenset({"segment", "key"}),
    # gradients: all gradients, then all float buffers times `share_frac`, as one flat vector:
    # of float64 where one of them is (since 1.8), otherwise of float32. step: one optimizer step;
    # an input replaces the gradients (and buffers) by such a vector first. Both leave the
    # gradients as zeros after `step`. Since 1.9 `given` says what its inputs are, in the order of
    # `STEP_INPUTS`; `groups` = [[parameters, settings], ...] have settings of their own, and each
    # parameter is in one of them; `rates` hold a row for each group: its settings of the names
    # `rated` in this step. `clip_value` bounds each number of the gradients, and `average` is the
    # decay of a moving average of the weights. With `growth_steps` it is left out where `scale` is
    # not finite; the state `loss_scale` of its segment is halved then, and doubled after so many
    # steps in a row that were not left out. Since 1.15 `gradients` that are `taken` are zeros
    # afterwards. A `step` that is `late` takes such a vector, leaving buffers alone, while forwards
    # and backwards of the next step are under way: their gradients stay, and a backward ends with
    # the weights of its forward, which are at most one such step older.
    "gradients": frozenset({"segment", "share_frac"}),
    "step": frozenset({"segment", "optimizer"}),
    # norms (since 1.9): the norm of each parameter's gradient, of this `order` (or "inf"); a vector
    # may stand for the gradients. limit (since 1.9): of the norms of all segments, of which the
    # number `places[i]` is the i-th that is looked at, what a step takes as `scale`, so that the
    # norm of all gradients is `most` at the most; then that norm. `scaled`: they are gradients of a
    # loss that was multiplied by the `loss_scale` of its segment, and are divided by it.
    "norms": frozenset({"segment", "order"}),
    "limit": frozenset({"segment", "order", "most", "places"}),
    # state / assign: read or write named state of a segment: a parameter or buffer by its name,
    # optimizer state as `SLOT:NAME`: see `potluck_wire.optimizers`.
    "state": frozenset({"segment", "names"}),
    "assign": frozenset({"segment", "names"}),
    # Tensors. All along `dim`; `concat` takes a scalar for a vector of one.
    "slice": frozenset({"dim", "start", "stop"}),
    "pad": frozenset({"dim", "before", "after"}),
    "concat": frozenset({"dim"}),
    "add": frozenset(),
}
OPTIONAL: dict[str, frozenset[str]] = {
    "send": frozenset({"to"}),
    "run": frozenset({"takes", "recompute", "split"}),
    "gradients": frozenset({"taken"}),
    "step": frozenset(
        {"given", "groups", "rated", "clip_value", "average", "growth_steps", "late"}
    ),
    "limit": frozenset({"scaled"}),
}
MAX_GROWTH_STEPS = 10**9
STEP_INPUTS = ("gradients", "scale", "rates")
NETWORK = frozenset({"send", "recv"})
BACKWARDS = frozenset({"backward", "backward_input"})  # those that gradients go into and come from
SEGMENT = BACKWARDS | {
    *("run", "backward_weight", "gradients", "step", "norms", "limit", "state", "assign")
}


# op -> ((fewest, most) inputs, (fewest, most) outputs)
MAX_VALUES = 4096  # inputs or outputs of one instruction: `state` of a whole segment
# so many, with the longest names, fit into the message by which a worker is told an instruction
NAMES_AT_ONCE = 200
_ONE = (1, 1)
_NONE = (0, 0)
_ANY = (0, MAX_VALUES)
_SOME = (1, MAX_VALUES)
ARITY: dict[str, tuple[tuple[int, int], tuple[int, int]]] = {
    "send": (_ONE, _NONE),
    "recv": (_NONE, _ONE),
    "run": (_ANY, _SOME),
    "backward": (_ANY, _ANY),
    "backward_input": (_ANY, _ANY),
    "backward_weight": (_NONE, _NONE),
    "gradients": (_NONE, _ONE),
    "step": ((0, len(STEP_INPUTS)), _NONE),
    "norms": ((0, 1), _ONE),
    "limit": (_SOME, (2, 2)),
    "state": (_NONE, _SOME),
    "assign": (_SOME, _NONE),
    "slice": (_ONE, _ONE),
    "pad": (_ONE, _ONE),
    "concat": (_SOME, _ONE),
    "add": (_SOME, _ONE),
}

MAX_LASTS_S = 3600.0  # no instruction of a real model takes an hour
MAX_RELEASE_S = 3600.0  # nor does a step
MAX_PACE_BYTES_PER_S = 1e12  # no link of a home carries a terabyte per second
# Columns that a program may have besides its rows -> the largest number in it.
COLUMNS = {
    "lasts_s": MAX_LASTS_S,
    "release_s": MAX_RELEASE_S,
    "pace_bytes_per_s": MAX_PACE_BYTES_PER_S,
}
MAX_INSTRUCTIONS = 100_000  # 64 micro-batches on 8 stages with a 64-way all-reduce are some 20,000
MAX_OPTIMIZER_ENTRIES = 16
MAX_GROUPS = 1024  # of parameters: layer-wise rates have one per layer
MAX_PLACES = 65_536  # parameters of a model


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
    """The instructions of one device for one step; instruction ids are their positions.

    Each of `COLUMNS` holds one number per instruction or is empty. `lasts_s` is for emulated
    devices: how long each computing instruction shall last by the device's profile; others pay no
    attention to it. `release_s`: how long after the step's common begin (`Execute.begin_s`) a send
    had better wait, so that more urgent transfers of other devices have the shared medium; a hint,
    see PROTOCOL.md. `pace_bytes_per_s`: no faster than that (0: as fast as it goes), so that what
    waits does so in the agent, where something more urgent can overtake it.
    """

    name: str
    instructions: tuple[Instruction, ...] = ()
    lasts_s: tuple[float, ...] = ()
    release_s: tuple[float, ...] = ()
    pace_bytes_per_s: tuple[float, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The program as plain JSON data: short rows [op, inputs, outputs, after, priority,
        attrs].
        """
        rows = [
            [i.op, list(i.inputs), list(i.outputs), list(i.after), i.priority, dict(i.attrs)]
            for i in self.instructions
        ]
        columns = {name: list(getattr(self, name)) for name in COLUMNS if getattr(self, name)}
        return {"name": self.name, "instructions": rows, **columns}

    def dumps(self) -> bytes:
        """The program as JSON text."""
        return dump(self.to_json())


def loads(data: Buffer) -> Program:
    """The program in this JSON text.

    Raises
    ------
    WireError
        On anything but a program that holds; see `from_json`.
    """
    return from_json(parse(data, "the program", anything))


def from_json(document: Any) -> Program:
    """The program in this parsed document (`Program.to_json` gives one).

    It holds when every operation is known and has exactly its attributes and its numbers of inputs
    and outputs. Every value is made once, by an instruction before those that use it; and `after`
    names earlier instructions. So there are no circles, and every value that is not made here is
    received here.

    Raises
    ------
    WireError
        With code `document`, naming the instruction and what is wrong with it.
    """
    if type(document) is not dict or document.keys() - COLUMNS.keys() != {"name", "instructions"}:
        known = ", ".join(COLUMNS)
        raise WireError(
            WireCode.DOCUMENT, f'a program is {{"name", "instructions"}}, and perhaps {known}'
        )
    name, rows = document["name"], document["instructions"]
    if not is_identifier(name):
        raise WireError(WireCode.DOCUMENT, f"{name!r:.40} cannot name a program")
    if type(rows) is not list or len(rows) > MAX_INSTRUCTIONS:
        raise WireError(
            WireCode.DOCUMENT,
            f"program {name}: not a list of at most {MAX_INSTRUCTIONS} instructions",
        )
    made: set[str] = set()
    sent: set[tuple[str, str, str]] = set()
    one_way: dict[str, bool] = {}
    instructions = []
    for index, row in enumerate(rows):
        try:
            instruction = _instruction(index, row)
            _connect(instruction, made, sent, one_way)
        except _Wrong as wrong:
            op = f" ({row[0]!r:.20})" if type(row) is list and row else ""
            raise WireError(
                WireCode.DOCUMENT, f"program {name}, instruction {index}{op}: {wrong}"
            ) from None
        instructions.append(instruction)
    columns = {
        column: _column(name, document.get(column, []), column, len(rows)) for column in COLUMNS
    }
    return Program(name=name, instructions=tuple(instructions), **columns)


def _column(name: str, numbers: Any, column: str, n_rows: int) -> tuple[float, ...]:
    """One number per instruction, or none at all."""
    limit = COLUMNS[column]
    if type(numbers) is not list or not all(
        type(n) in (int, float) and 0 <= n <= limit for n in numbers
    ):
        raise WireError(
            WireCode.DOCUMENT, f"program {name}: {column} are numbers of 0 to {limit:g}"
        )
    if numbers and len(numbers) != n_rows:
        raise WireError(
            WireCode.DOCUMENT, f"program {name}: {len(numbers)} {column} for {n_rows} instructions"
        )
    return tuple(map(float, numbers))


def is_segment(name: object) -> bool:
    """Whether this may stand in the attribute `segment`: a name, or `EPOCH/NAME` for an epoch that
    is still loaded.
    """
    return is_identifier(name) or is_of_epoch(name)


def is_of_epoch(name: object) -> bool:
    """Whether this is `EPOCH/NAME`."""
    if type(name) is not str:
        return False
    epoch, _, rest = name.partition("/")
    return epoch.isascii() and epoch.isdecimal() and len(epoch) <= 15 and is_identifier(rest)


def read_target(to: str) -> tuple[int, str]:
    """(epoch, program) of a send's checked attribute `to`.

    >>> read_target("6/follow")
    (6, 'follow')
    """
    epoch, _, program = to.partition("/")
    return int(epoch), program


class _Wrong(Exception):
    """What is wrong with one instruction."""


def _instruction(index: int, row: Any) -> Instruction:
    """One row, checked by itself."""
    if type(row) is not list or len(row) != 6:
        raise _Wrong("not [op, inputs, outputs, after, priority, attrs]")
    op, inputs, outputs, after, priority, attrs = row
    if type(op) is not str or op not in OPERATIONS:
        raise _Wrong("unknown operation")
    for word, values, (min_names, max_names) in zip(
        ("inputs", "outputs"), (inputs, outputs), ARITY[op], strict=True
    ):
        if (
            type(values) is not list
            or not min_names <= len(values) <= max_names
            or not set(map(type, values)) <= _STRINGS
        ):
            raise _Wrong(f"{word} must be {min_names} to {max_names} names of values")
    if not all(map(is_value_name, outputs)):  # an input is one of them, see `_connect`
        raise _Wrong("outputs must be names of values")
    if type(after) is not list or (
        after and (set(map(type, after)) != _INTEGERS or not _are_within(after, index))
    ):
        raise _Wrong("after must name earlier instructions")
    if not _is_int(priority, -MAX_INT, MAX_INT):
        raise _Wrong("priority must be an integer within 2**53")
    if type(attrs) is not dict or attrs.keys() - OPTIONAL.get(op, frozenset()) != OPERATIONS[op]:
        raise _Wrong(
            f"its attributes must be exactly {', '.join(sorted(OPERATIONS[op])) or 'none'}"
        )
    for name, value in attrs.items():
        fits, expected = _ATTRIBUTES[name]
        if not fits(value):
            raise _Wrong(f"{name} must be {expected}, got {value!r:.40}")
    _check_together(op, inputs, outputs, attrs)
    return Instruction(
        id=index,
        op=op,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        after=tuple(after),
        priority=priority,
        attrs=attrs,
    )


def _check_together(op: str, inputs: list[str], outputs: list[str], attrs: dict[str, Any]) -> None:
    """What attributes and values must hold together."""
    if op == "slice" and attrs["start"] > attrs["stop"]:
        raise _Wrong(f"slice [{attrs['start']}, {attrs['stop']}) ends before it starts")
    if "takes" in attrs and len(attrs["takes"]) != len(inputs):
        raise _Wrong(f"takes of {len(attrs['takes'])} inputs, there are {len(inputs)}")
    if op == "step":
        _check_step(inputs, attrs)
    if op in ("state", "assign") and len(attrs["names"]) != len(
        outputs if op == "state" else inputs
    ):
        raise _Wrong(
            f"{len(attrs['names'])} names for {len(outputs if op == 'state' else inputs)} values"
        )


def _check_step(inputs: list[str], attrs: dict[str, Any]) -> None:
    """What its inputs are."""
    given = attrs.get("given", STEP_INPUTS[:1][: len(inputs)])
    if len(given) != len(inputs):
        raise _Wrong(f"given are {len(given)} inputs, there are {len(inputs)}")
    if ("rates" in given) != ("rated" in attrs):
        raise _Wrong("rates are given where they are rated, and only there")
    if "growth_steps" in attrs and "scale" not in given:
        raise _Wrong("a step that may be left out is given the scale by which that is known")
    if "rated" in attrs and not attrs.get("groups"):
        raise _Wrong("rates are those of groups, and there are none")
    if attrs.get("late") and "gradients" not in given:
        raise _Wrong("a step that is late is given its gradients")


def _connect(
    instruction: Instruction,
    made: set[str],
    sent: set[tuple[str, str, str]],
    one_way: dict[str, bool],
) -> None:
    """Values are used after they are made, and made once.

    Nothing is sent twice under one name to one peer.

    `one_way` tells of each value that was sent whether that was to another program; such a value is
    sent once.
    """
    if not made.issuperset(instruction.inputs):
        missing = next(value for value in instruction.inputs if value not in made)
        raise _Wrong(f"the value {missing!r:.60} is not made before it")
    for value in instruction.outputs:
        if value in made:
            raise _Wrong(f"the value {value!r:.60} is made twice")
        made.add(value)
    if instruction.op == "send":
        target = (
            instruction.attrs["peer"],
            instruction.attrs["name"],
            instruction.attrs.get("to", ""),
        )
        if target in sent:
            raise _Wrong(f"{target[1]!r:.60} is sent to {target[0]} twice")
        sent.add(target)
        (value,), is_one_way = instruction.inputs, "to" in instruction.attrs
        if value in one_way and (one_way[value] or is_one_way):
            raise _Wrong(f"{value!r:.60} goes to another program, so it is sent once")
        one_way[value] = is_one_way


_STRINGS, _INTEGERS = {str}, {int}  # a set of types is found without a call for each value


def _are_within(numbers: list[int], stop: int) -> bool:
    return min(numbers) >= 0 and max(numbers) < stop


def _is_int(value: Any, low: int, high: int) -> bool:
    return type(value) is int and low <= value <= high


def _is_count(value: Any) -> bool:
    return _is_int(value, 0, MAX_INT)


def _is_number(value: Any) -> bool:
    return (type(value) is float and math.isfinite(value)) or _is_int(value, -MAX_INT, MAX_INT)


def _is_rows(value: Any) -> bool:
    if type(value) is not list or len(value) != 3 or not all(map(_is_count, value)):
        return False
    start, stop, total = value
    return bool(start < stop <= total)


def _is_takes(value: Any) -> bool:
    if type(value) is not list or len(value) > MAX_VALUES:
        return False
    return all(
        take is None
        or (
            type(take) is list
            and len(take) == 2
            and all(map(_is_count, take))
            and take[0] <= take[1]
        )
        for take in value
    )


def _is_names(value: Any) -> bool:
    return type(value) is list and 1 <= len(value) <= MAX_VALUES and all(map(is_value_name, value))


def _is_optimizer(value: Any) -> bool:
    """A flat object of numbers, booleans and names.

    Which of them it needs is the optimizer's own affair.
    """
    if type(value) is not dict or not 1 <= len(value) <= MAX_OPTIMIZER_ENTRIES:
        return False
    return all(
        is_identifier(key) and (type(entry) is bool or _is_number(entry) or is_identifier(entry))
        for key, entry in value.items()
    )


def _is_groups(value: Any) -> bool:
    """Parameters and settings, by groups; a group may have none."""
    return (
        type(value) is list
        and 1 <= len(value) <= MAX_GROUPS
        and all(
            type(group) is list
            and len(group) == 2
            and (group[0] == [] or _is_names(group[0]))
            and (group[1] == {} or _is_optimizer(group[1]))
            for group in value
        )
    )


def _is_given(value: Any) -> bool:
    return type(value) is list and value == [name for name in STEP_INPUTS if name in value]


def _is_order(value: Any) -> bool:
    return value == "inf" or (_is_number(value) and value > 0)


def _is_places(value: Any) -> bool:
    """Numbers from 0 on, each once, in any order."""
    return (
        type(value) is list
        and 1 <= len(value) <= MAX_PLACES
        and set(map(type, value)) == _INTEGERS
        and _are_within(value, MAX_PLACES)
        and len(set(value)) == len(value)
    )


# attribute -> (check, what it must be)
_ATTRIBUTES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "peer": (is_identifier, "the name of a member"),
    "name": (is_value_name, "the name of a value"),
    "to": (is_of_epoch, "EPOCH/PROGRAM"),
    "segment": (is_segment, "the name of a segment"),
    "key": (is_value_name, "a name"),
    "train": (lambda value: type(value) is bool, "true or false"),
    "recompute": (lambda value: type(value) is bool, "true or false"),
    "split": (lambda value: type(value) is bool, "true or false"),
    "scaled": (lambda value: type(value) is bool, "true or false"),
    "taken": (lambda value: type(value) is bool, "true or false"),
    "late": (lambda value: type(value) is bool, "true or false"),
    "rows": (_is_rows, "[start, stop, total]"),
    "takes": (_is_takes, "a list of [start, stop] or null"),
    "micro_batch": (_is_count, "a count"),
    "scale": (_is_number, "a number"),
    "share_frac": (lambda value: _is_number(value) and 0 <= value <= 1, "a number in 0..1"),
    "optimizer": (_is_optimizer, "a flat object of numbers and names"),
    "groups": (_is_groups, f"1 to {MAX_GROUPS} of [names, settings]"),
    "given": (_is_given, f"some of {', '.join(STEP_INPUTS)}, in this order"),
    "rated": (
        lambda value: _is_names(value) and len(value) <= MAX_OPTIMIZER_ENTRIES,
        f"1 to {MAX_OPTIMIZER_ENTRIES} names of settings",
    ),
    "clip_value": (lambda value: _is_number(value) and value >= 0, "a number of 0 or more"),
    "average": (lambda value: _is_number(value) and 0 <= value <= 1, "a number in 0..1"),
    "growth_steps": (lambda value: _is_int(value, 1, MAX_GROWTH_STEPS), "a count of steps"),
    "order": (_is_order, 'a number above 0, or "inf"'),
    "most": (lambda value: _is_number(value) and value >= 0, "a number of 0 or more"),
    "places": (_is_places, f"1 to {MAX_PLACES} places, each once"),
    "names": (_is_names, f"1 to {MAX_VALUES} names"),
    "dim": (lambda value: _is_int(value, 0, MAX_DIMENSIONS - 1), "a dimension"),
    "start": (_is_count, "a count"),
    "stop": (_is_count, "a count"),
    "before": (_is_count, "a count"),
    "after": (_is_count, "a count"),
}
