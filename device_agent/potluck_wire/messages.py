"""The one table of what may be said: every message, its number, who sends it, where, and how many
raw buffers follow it.

A message is a flat frozen record of integers, floats, strings, booleans, bytes and tuples of those.
Documents (capabilities, graphs, programs, traces) and tensors ride behind it as raw buffers. Every
field has a default: a newer minor version may add fields at the end, never change one. Numbers are
never used twice.
"""

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from typing import dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Any:
        """Nothing at run time; Python 3.10 has none."""
        return lambda record: record


T = TypeVar("T")

HOME = "home"  # the controller's name wherever a device's name could stand


class Channel(str, Enum):
    """Which socket a message travels on, so that a bulky one never delays an urgent one."""

    CONTROL = "control"
    DATA = "data"
    PULSE = "pulse"
    PAIRING = "pairing"
    RELAY = "relay"  # between an agent and a relay that it is reached through
    WORKER = "worker"  # between the agent and its own worker process; never on a network

    def __format__(self, spec: str) -> str:  # as StrEnum, which Python 3.10 lacks
        return str.__format__(self.value, spec)

    __str__ = str.__str__


@dataclass_transform(kw_only_default=True, frozen_default=True)
def _message(record: type[T]) -> type[T]:
    """A frozen record to whoever checks types.

    What Python does to keep one frozen makes a `Value` in 6 us, not 1.6.
    """
    return dataclass(slots=True, kw_only=True, unsafe_hash=True)(record)


@_message
class Message:
    """What every message is."""


# --- control: a session ---------------------------------------------------------------------------


@_message
class Hello(Message):
    """A controller opens a session. The agent answers `Welcome`, or `Refused` where the major
    versions differ.
    """

    major: int = 0
    minor: int = 0
    name: str = ""


@_message
class Welcome(Message):
    """The session stands. Buffer 0: the capability statement (JSON object, see PROTOCOL.md)."""

    major: int = 0
    minor: int = 0
    name: str = ""


@_message
class Refused(Message):
    """The message with number `about` was not carried out. `code` is from `RefusalCode`.

    `text` is for people.

    `needed_bytes`, `available_bytes` (since 1.6): of a plan larger than what is left of the owner's
    limit; 0 and 0 of any other refusal.
    """

    about: int = 0
    code: str = ""
    text: str = ""
    run: str = ""
    epoch: int = 0
    needed_bytes: int = 0
    available_bytes: int = 0


@_message
class Roster(Message):
    """The members of this home, so that they may stream to each other.

    Buffer 0: JSON list of {name, key, address}.

    The whole list each time; whoever is no longer on it is cut off. Where notebooks tell of one
    device, those are believed whose run is loaded or that measure, else all; of their addresses one
    after the other is tried, until its key answers. A notebook's key is never a member's.
    """

    home: str = ""


@_message
class RosterSet(Message):
    """The roster is in force."""

    home: str = ""


@_message
class Goodbye(Message):
    """The sender closes the session in good order; its runs end and their memory is given back."""

    reason: str = ""


@_message
class Leaving(Message):
    """Since 1.8. The device wants to leave, and says why: it takes no new run and measures nothing.

    Runs that are loaded go on for `within_s` seconds more, so that they can move elsewhere; then
    they end with a `Goodbye`. Said again where another reason holds. Who comes later reads it in
    the capability statement.
    """

    reason: str = ""
    within_s: float = 0.0


@_message
class Staying(Message):
    """Since 1.8. What was said with `Leaving` holds no longer: the device takes part again."""


@_message
class Available(Message):
    """Since 1.10. What other notebooks leave of what the owner allows: `memory_bytes`.

    `n_beside` of them have runs here now. Said behind a `Welcome` where there are any, and whenever
    that has changed.
    """

    memory_bytes: int = 0
    n_beside: int = 0


# --- control: runs --------------------------------------------------------------------------------


@_message
class Prepare(Message):
    """Load the segments and programs of plan number `epoch` beside whatever runs now.

    Buffer 0: JSON {"segments": [{"name", "kind": "aten" | "onnx"}], "programs":
    [Program.to_json()]}; then one buffer per segment, in that order (a graph document or an ONNX
    model). A segment with "weights": NAME, or EPOCH/NAME of this run, has the state of that earlier
    one, and only runs forward. `memory_bytes` is what the plan says it needs here. `credit_along`
    (since 1.5): all devices of the run know `Value.received`. `lease`, `term` (since 1.9): that of
    the coordinator who trains it, see `Lease`; refused with `old-term` where a newer one has begun.
    A newer term than the device knows is believed: others promised it.
    """

    run: str = ""
    epoch: int = 0
    memory_bytes: int = 0
    seed: int = 0
    credit_along: bool = False
    lease: str = ""
    term: int = 0


@_message
class Prepared(Message):
    """Everything of that epoch is loaded; it does not run yet."""

    run: str = ""
    epoch: int = 0


@_message
class Commit(Message):
    """From now on `epoch` is the plan of `run`: older epochs are dropped and their messages counted
    and ignored.

    `memory_bytes` (since 1.4): what it needs alone, where it was prepared with more for the time
    beside the older ones; 0: what it was prepared with.
    """

    run: str = ""
    epoch: int = 0
    memory_bytes: int = 0


@_message
class Committed(Message):
    """That epoch is in force."""

    run: str = ""
    epoch: int = 0


@_message
class Drop(Message):
    """Forget an epoch of a run, or the whole run (`epoch` = -1): segments, values, programs.

    Dropping twice is fine.
    """

    run: str = ""
    epoch: int = -1


@_message
class Dropped(Message):
    """It is forgotten."""

    run: str = ""
    epoch: int = -1


@_message
class Execute(Message):
    """Run a loaded program once. (run, epoch, program, step) is executed at most once.

    A repeat is answered again. Steps from 2**52 on are of requests for services, and refused.

    `begin_s`: when all devices begin this step together, by this device's own clock (that of its
    `Pong`); the program's `release_s` count from then. 0: nobody knows, nothing is held back.
    `after_step`: begin behind the execution of this program at that step, if that is under way or
    waits here: once nothing is left of it but tasks that its worker has. Where that one fails, this
    one is cancelled.
    """

    run: str = ""
    epoch: int = 0
    program: str = ""
    step: int = 0
    begin_s: float = 0.0
    after_step: int = -1


@_message
class Done(Message):
    """The program ran to its end. Buffer 0: JSON list of [instruction id, start_s, stop_s], this
    device's own clock.

    `busy_s` is the time the compute queue worked, `peak_bytes` the worker's peak of tensor memory
    in this execution.
    """

    run: str = ""
    epoch: int = 0
    program: str = ""
    step: int = 0
    busy_s: float = 0.0
    peak_bytes: int = 0


@_message
class Failed(Message):
    """The execution ended at `instruction` (-1: none in particular).

    `cause` is from `FailureCause`.
    """

    run: str = ""
    epoch: int = 0
    program: str = ""
    step: int = 0
    instruction: int = -1
    cause: str = ""
    text: str = ""


@_message
class Abort(Message):
    """End one execution, begun or not, and nothing else: its values are given back, and none is
    taken any more.

    Answered by its `Failed` (cause `cancelled`), unless it is over and so answered already.
    """

    run: str = ""
    epoch: int = 0
    program: str = ""
    step: int = 0


# --- control: who coordinates ---------------------------------------------------------------------


@_message
class Lease(Message):
    """Since 1.9. One of several coordinators asks to act in a term of the lease `name`.

    Without a `record` it asks for a promise: that nothing of older terms is taken any more. With
    one, the record is written in that term (of equal terms the larger `serial` counts), and stays
    when the agent is started again. Either is granted where no newer term was promised, and to
    another than the holder only once its time is over; then the lease is the sender's for
    `lasts_s`. Runs of others in older terms end, its own go along into this one. An agent keeps
    `MAX_LEASES` of each sender, and forgets its oldest one that is over for a new one; none is
    granted to a sender who holds so many.
    """

    task: str = ""
    name: str = ""
    term: int = 0
    serial: int = 0
    lasts_s: float = 0.0
    record: str = ""


@_message
class Leased(Message):
    """Whether that was granted, and what the device knows of the lease now.

    `term`: the newest that was promised; `left_s`: of the holder's time; `record`: the latest, as
    it was written in `accepted_term` with `accepted_serial`.
    """

    task: str = ""
    granted: bool = False
    term: int = 0
    left_s: float = 0.0
    accepted_term: int = 0
    accepted_serial: int = 0
    record: str = ""


# --- control: measuring ---------------------------------------------------------------------------


@_message
class Measure(Message):
    """Time one layer on this device, forward and (if `train`) backward.

    Buffer 0: the graph document or ONNX model.

    For each of `rows` (batch sizes): one warm-up, then `repeats` timed runs on made-up inputs;
    weights are made up too.
    """

    task: str = ""
    kind: str = "aten"
    train: bool = False
    rows: tuple[int, ...] = ()
    repeats: int = 3


@_message
class Measured(Message):
    """Median seconds per run for each of `rows`; `backward_s` is empty for inference.

    `memory_bytes`: kept for backward. `update_s`: one step of AdamW on the layer's parameters;
    `sgd_s` of SGD, without momentum and with it (nothing before 1.8, or for inference).
    `weight_frac`: which part of a backward is that of the weights, which can wait (since 1.9;
    negative: not measured). `n_beside`: other notebooks whose runs went on meanwhile (since
    1.10).
    """

    task: str = ""
    rows: tuple[int, ...] = ()
    forward_s: tuple[float, ...] = ()
    backward_s: tuple[float, ...] = ()
    memory_bytes: tuple[int, ...] = ()
    update_s: float = 0.0
    sgd_s: tuple[float, ...] = ()
    weight_frac: float = -1.0
    n_beside: int = 0


@_message
class Probe(Message):
    """Send `repeats` values of `nbytes` to `peer` (a member's name, or `home`) one after the other
    and time each.
    """

    task: str = ""
    peer: str = ""
    nbytes: int = 0
    repeats: int = 1


@_message
class Probed(Message):
    """Seconds from handing over the first chunk to the receiver's acknowledgement of the last, for
    each repeat. `n_beside` as in `Measured` (since 1.10).
    """

    task: str = ""
    peer: str = ""
    seconds: tuple[float, ...] = ()
    n_beside: int = 0


@_message
class Meter(Message):
    """Stream `Reading`s every `period_s` seconds, of 0.05 to 3600 s; 0 stops them. Since 1.8 other
    periods are refused.
    """

    period_s: float = 0.0


@_message
class Reading(Message):
    """Power now and energy since the agent started. `source`: measured, estimated or simulated.

    Once its joules hold an estimate, for a meter was silent or jumped, they are estimated.
    `battery_frac`: charge, 0 to 1 (since 1.8); -1 without a battery.
    """

    at_s: float = 0.0
    watts: float = 0.0
    joules: float = 0.0
    source: str = "estimated"
    meter: str = ""
    resolution_w: float = 0.0
    busy_frac: float = 0.0
    battery_frac: float = -1.0


@_message
class GrantService(Message):
    """Since 1.11. `service` can be asked for here, and by whom: it is `program` of that epoch of
    `run`.

    Buffer 0: JSON {"inputs": [{name, dtype, shape}], "peers": [{name, asks_per_s, hands_on}]}. The
    whole each time: who is no longer in it may ask no more, and what it has asked for ends. Without
    a `run` the service is withdrawn. `asks_per_s`: how often that member may ask here, 0: not at
    all; `hands_on`: requests may be handed on to it. `run_s`: what one takes here. `limit_s`: none
    may take longer. `lasts_s`: then all that is granted here is over; 0: as long as the run.

    Since 1.12 with "sizes", [{rows, program, run_s, inputs}]: what answers requests of several
    rows; and for a peer with `rows`, the most of one that may be handed on to it (1).
    """

    service: str = ""
    run: str = ""
    epoch: int = 0
    program: str = ""
    run_s: float = 0.0
    limit_s: float = 0.0
    lasts_s: float = 0.0


@_message
class ServiceGranted(Message):
    """Since 1.11. That is in force."""

    service: str = ""


# --- data -----------------------------------------------------------------------------------------


@_message
class Value(Message):
    """A tensor begins. Buffer 0: chunk 0 (all of it, where it fits). `transfer` numbers the
    sender's values on this link.

    A value is applied once per (run, epoch, program, step, name); a repeat is acknowledged and
    ignored. `received` (since 1.5, between devices): transfers of the receiver's own that are here
    in full, as a `Credit` would say. `content` (since 1.12, from the controller): as in its
    `Offer`; the agent may keep the value under it.
    """

    transfer: int = 0
    run: str = ""
    epoch: int = 0
    program: str = ""
    step: int = 0
    name: str = ""
    dtype: str = "float32"
    shape: tuple[int, ...] = ()
    nbytes: int = 0
    chunk_bytes: int = 0
    received: tuple[int, ...] = ()
    content: bytes = b""


@_message
class Offer(Message):
    """Since 1.12. A value that the receiver may have kept: the fields are those of its `Value`.

    `content` is the SHA-256 of its type, shape and bytes. Answered by `Credit` that is `done`, once
    the value is in its place and has that sum, or by `Wanted`.
    """

    transfer: int = 0
    run: str = ""
    epoch: int = 0
    program: str = ""
    step: int = 0
    name: str = ""
    dtype: str = "float32"
    shape: tuple[int, ...] = ()
    nbytes: int = 0
    content: bytes = b""


@_message
class Wanted(Message):
    """Since 1.12. What was offered as `transfer` is not kept here: send its `Value`."""

    transfer: int = 0


@_message
class Chunk(Message):
    """Chunk `index` >= 1 of a value; all but the last have exactly `chunk_bytes`.

    Buffer 0: the bytes.
    """

    transfer: int = 0
    index: int = 0


@_message
class Credit(Message):
    """`received_bytes` of `transfer` have arrived, so the sender may send as many more.

    `done` when all have.
    """

    transfer: int = 0
    received_bytes: int = 0
    done: bool = False


@_message
class Rejected(Message):
    """That value is not wanted (old epoch, unknown run, no memory); stop sending it."""

    transfer: int = 0
    code: str = ""
    text: str = ""


@_message
class Ask(Message):
    """Since 1.11. A request for a service: its inputs follow as values of no run, program `ask` and
    step `number`.

    The outputs come back as values of program `answer`, then `AskEnded`. From a member that it is
    granted to, or from the service's own controller. `number` grows on each connection. `left_s`:
    until the answer must be there. `path`: the members that it went through, the entrance first.
    `rows` (since 1.12): of its inputs, as the grant has a program for. `grace_s` (since 1.14): for
    how long after its time a late answer is of use.
    """

    number: int = 0
    service: str = ""
    left_s: float = 0.0
    path: tuple[str, ...] = ()
    rows: int = 1
    grace_s: float = 0.0


@_message
class AskEnded(Message):
    """Since 1.11. How that request ended: `code` is empty, from `RefusalCode` or `FailureCause`.

    `path`: who has had it, from the one who says this on, and `hops_s`: for how long each.
    """

    number: int = 0
    code: str = ""
    text: str = ""
    path: tuple[str, ...] = ()
    hops_s: tuple[float, ...] = ()


@_message
class Standing(Message):
    """Since 1.11. How a service stands here: said every second to who may ask for it.

    `capacity_per_s` requests are possible, of which `idle_per_s` were not used lately. What waits
    takes `queue_s`, one `run_s`.
    """

    service: str = ""
    capacity_per_s: float = 0.0
    idle_per_s: float = 0.0
    queue_s: float = 0.0
    run_s: float = 0.0


# --- pulse ----------------------------------------------------------------------------------------


@_message
class Ping(Message):
    """Are you alive, and what time is it there?"""

    seq: int = 0


@_message
class Pong(Message):
    """Alive.

    `clock_s` is the device's monotonic clock, `progress` counts finished instructions and chunks
    that came or were credited: it tells hung from busy.
    """

    seq: int = 0
    clock_s: float = 0.0
    progress: int = 0
    busy: bool = False


# --- pairing (plain TCP, before any key is trusted) -----------------------------------------------


@_message
class PairHello(Message):
    """Who I am and which CURVE key I will be known by; both sides send one."""

    major: int = 0
    minor: int = 0
    name: str = ""
    key: str = ""


@_message
class PairShare(Message):
    """The SPAKE2 element."""

    share: bytes = b""


@_message
class PairConfirm(Message):
    """HMAC-SHA256 over the transcript under the agreed key: proof that both typed the same code."""

    mac: bytes = b""


@_message
class PairRefused(Message):
    """No pairing: `code` is closed, expired, wrong-code, busy, version or malformed.

    `tries_left` in this window.
    """

    code: str = ""
    text: str = ""
    tries_left: int = 0


# --- relay (between an agent without an address of its own, and who takes its visitors) -----------


@_message
class Register(Message):
    """Since 1.9. Take connections for me from now on; said again every `RELAY_KEEP_S`."""

    major: int = 0
    minor: int = 0


@_message
class Registered(Message):
    """Since 1.9. The relay takes them, on four ports in a row.

    `port` is the first of them; 0: it does not, and `text` says why.
    """

    major: int = 0
    minor: int = 0
    port: int = 0
    text: str = ""


@_message
class Dial(Message):
    """Since 1.9. Somebody has connected to the port of that `offset`: connect to the relay, say
    `ticket` first, and join that connection to the agent's own port.
    """

    ticket: bytes = b""
    offset: int = 0


# --- worker (a pipe between the agent and its own worker process) ---------------------------------


@_message
class Configure(Message):
    """First message to a worker. `slowdown` > 1 emulates a slower device: each task is stretched to
    that many times.

    `backends`: which to compute with; empty: all that are there. `provider`: onnxruntime's short
    name of the accelerator for ONNX segments; empty: the CPU. `device`: torch's name of the one for
    all other segments, as cuda:0; empty: the CPU. `memory_bytes` are on that one then.
    """

    memory_bytes: int = 0
    threads: int = 1
    slowdown: float = 1.0
    inbound_bytes: int = 0
    outbound_bytes: int = 0
    backends: tuple[str, ...] = ()
    provider: str = ""
    device: str = ""


@_message
class WorkerReady(Message):
    """The worker is up. Buffer 0: JSON {"backends": {"torch": version, ...}, "operators": [...],
    "dtypes": [...]}.
    """


@_message
class LoadSegment(Message):
    """Make a segment from buffer 0, called `slot` from now on: run/epoch/segment.

    `weights`: whose state it has.
    """

    slot: str = ""
    kind: str = "aten"
    seed: int = 0
    weights: str = ""


@_message
class SegmentLoaded(Message):
    """It is there."""

    slot: str = ""


@_message
class Forget(Message):
    """Drop every segment slot and every value whose key begins with `prefix`."""

    prefix: str = ""


@_message
class Limit(Message):
    """From now on tensors on its accelerator may take `memory_bytes`, for others have the rest."""

    memory_bytes: int = 0


@_message
class Put(Message):
    """A value has arrived: `nbytes` at `offset` of the inbound arena.

    The worker owns that place until it says `Freed`.
    """

    value: str = ""
    offset: int = 0
    nbytes: int = 0
    dtype: str = "float32"
    shape: tuple[int, ...] = ()


@_message
class Compute(Message):
    """Carry out one instruction; tasks are done in the order they come. Buffer 0: the instruction's
    attrs (JSON object).

    `slot` is the segment (or empty); `exports` are outputs to copy to the outbound arena; `frees`
    are dropped afterwards. `scope` begins every key of the execution that it belongs to. `lasts_s`
    > 0: how long it shall last on an emulated device.
    """

    tag: int = 0
    op: str = ""
    slot: str = ""
    step: int = 0
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    exports: tuple[str, ...] = ()
    frees: tuple[str, ...] = ()
    scope: str = ""
    lasts_s: float = 0.0


@_message
class Computed(Message):
    """Task `tag` is done. Buffer 0: JSON list of [value, offset, nbytes, dtype, shape] in the
    outbound arena.

    `freed`: places of the inbound arena that nothing looks at any more.
    """

    tag: int = 0
    start_s: float = 0.0
    stop_s: float = 0.0
    memory_bytes: int = 0
    freed: tuple[int, ...] = ()


@_message
class ComputeFailed(Message):
    """Task `tag` (or the loading of `slot`) failed; the worker goes on.

    `cause` is from `FailureCause`.
    """

    tag: int = -1
    slot: str = ""
    cause: str = ""
    text: str = ""


@_message
class Release(Message):
    """To the worker: that place of the outbound arena has been sent."""

    offset: int = 0


@_message
class Freed(Message):
    """To the agent: that place of the inbound arena is free again, though no task was done."""

    offset: int = 0


@_message
class MeasureTask(Message):
    """`Measure`, handed on to the worker, in turn with its other tasks.

    Buffer 0: the graph document or ONNX model.
    """

    task: str = ""
    kind: str = "aten"
    train: bool = False
    rows: tuple[int, ...] = ()
    repeats: int = 3


@_message
class MeasuredTask(Message):
    """The answer, with the fields of `Measured`.

    A failure is `ComputeFailed` with `slot` = `task`.
    """

    task: str = ""
    rows: tuple[int, ...] = ()
    forward_s: tuple[float, ...] = ()
    backward_s: tuple[float, ...] = ()
    memory_bytes: tuple[int, ...] = ()
    update_s: float = 0.0
    sgd_s: tuple[float, ...] = ()
    weight_frac: float = -1.0


@_message
class TryProcessor(Message):
    """First and only message to a throw-away worker: how fast is the CPU with `threads`, one figure
    for each, and which accelerators does onnxruntime offer? With a `provider`: does that one work
    here within `memory_bytes`? Timing takes about `budget_s`.

    `backends` as in `Configure`. `device`: a kind, as cuda, asks which of them torch sees; one of
    them, as cuda:0, is tried as a `provider` is.
    """

    provider: str = ""
    threads: tuple[int, ...] = ()
    memory_bytes: int = 0
    budget_s: float = 0.0
    backends: tuple[str, ...] = ()
    device: str = ""


@_message
class ProcessorTried(Message):
    """The answer: a rate for each of `threads`, or one of the `provider`, or why it does not work.

    `providers`: those that are there, where none was asked for; `devices`: torch's of the kind that
    was asked for. Of a device that was tried: its `name`, the `memory_bytes` that are free on it,
    and its `dtypes`.
    """

    flops_per_s: tuple[float, ...] = ()
    providers: tuple[str, ...] = ()
    reason: str = ""
    devices: tuple[str, ...] = ()
    name: str = ""
    memory_bytes: int = 0
    dtypes: tuple[str, ...] = ()


class RefusalCode:
    """Why a request was not carried out (`Refused.code`, `Rejected.code`)."""

    VERSION = "version"  # another major version
    NOT_PAIRED = "not-paired"  # the device does not trust this key
    BUSY = "busy"  # another controller's run is on, or too much waits already
    MEMORY = "memory"  # more than the owner allows
    OPERATOR = "operator"  # not on the allow-list
    BACKEND = "backend"  # torch or onnxruntime is not installed here
    DOCUMENT = "document"  # a program, graph or model that does not hold
    OLD_EPOCH = "old-epoch"  # a newer epoch of the run is in force
    UNKNOWN_RUN = "unknown-run"  # nothing of that run is loaded, or it went with the worker
    STATE = "state"  # not now: see the session states
    LEAVING = "leaving"  # the device wants to leave: see `Leaving` (since 1.8)
    OLD_TERM = "old-term"  # another coordinator acts in a newer term: see `Lease` (since 1.9)
    NOT_GRANTED = "not-granted"  # see `GrantService` (since 1.11)
    TOO_OFTEN = "too-often"  # more often than was granted (since 1.11)
    PATH = "path"  # a request went where it cannot have, or comes again (since 1.11)
    LATE = "late"  # its time is over, or would be (since 1.11)
    HOPS = "hops"  # handed on too often (since 1.11)
    INSUFFICIENT = "insufficient"  # neither this device nor another one can take it (since 1.11)


class FailureCause:
    """Why an execution ended (`Failed.cause`, `ComputeFailed.cause`)."""

    CRASHED = "worker-crashed"  # the worker ended, broke the protocol, or could not be started
    HUNG = "worker-hung"  # the worker owed an answer for too long
    MEMORY = "out-of-memory"  # a task needed more memory than the worker may use
    INPUT = "bad-input"  # shapes or types that do not fit
    ARITHMETIC = "arithmetic"  # the operator itself failed
    PEER_LOST = "peer-lost"  # a value did not get to, or come from, another device of the run
    CANCELLED = "cancelled"  # its run, epoch or notebook went, or it was aborted
    INTERNAL = "internal"  # a fault in the agent or the worker: see its report


ASK_CODES = frozenset(  # of `AskEnded`
    value
    for kind in (RefusalCode, FailureCause)
    for name, value in vars(kind).items()
    if name.isupper()
)


@dataclass(frozen=True, slots=True)
class MessageEntry:
    """One row of the table: `sender` is controller, agent, either, relay, or worker.

    `buffers` is (fewest, most).
    """

    type: type[Message]
    channel: Channel
    sender: str
    buffers: tuple[int, int] = (0, 0)


_C = Channel.CONTROL
_D = Channel.DATA
_P = Channel.PULSE
_R = Channel.RELAY
_W = Channel.WORKER

MESSAGES: dict[int, MessageEntry] = {
    1: MessageEntry(Hello, _C, "controller"),
    2: MessageEntry(Welcome, _C, "agent", (1, 1)),
    3: MessageEntry(Refused, _C, "agent"),
    4: MessageEntry(Roster, _C, "controller", (1, 1)),
    5: MessageEntry(RosterSet, _C, "agent"),
    6: MessageEntry(Goodbye, _C, "either"),
    7: MessageEntry(Leaving, _C, "agent"),
    8: MessageEntry(Staying, _C, "agent"),
    9: MessageEntry(Available, _C, "agent"),
    10: MessageEntry(Prepare, _C, "controller", (1, 257)),
    11: MessageEntry(Prepared, _C, "agent"),
    12: MessageEntry(Commit, _C, "controller"),
    13: MessageEntry(Committed, _C, "agent"),
    14: MessageEntry(Drop, _C, "controller"),
    15: MessageEntry(Dropped, _C, "agent"),
    16: MessageEntry(Execute, _C, "controller"),
    17: MessageEntry(Done, _C, "agent", (1, 1)),
    18: MessageEntry(Failed, _C, "agent"),
    19: MessageEntry(Abort, _C, "controller"),
    20: MessageEntry(Measure, _C, "controller", (1, 1)),
    21: MessageEntry(Measured, _C, "agent"),
    22: MessageEntry(Probe, _C, "controller"),
    23: MessageEntry(Probed, _C, "agent"),
    24: MessageEntry(Meter, _C, "controller"),
    25: MessageEntry(Reading, _C, "agent"),
    26: MessageEntry(Lease, _C, "controller"),
    27: MessageEntry(Leased, _C, "agent"),
    28: MessageEntry(GrantService, _C, "controller", (1, 1)),
    29: MessageEntry(ServiceGranted, _C, "agent"),
    40: MessageEntry(Value, _D, "either", (1, 1)),
    41: MessageEntry(Chunk, _D, "either", (1, 1)),
    42: MessageEntry(Credit, _D, "either"),
    43: MessageEntry(Rejected, _D, "either"),
    44: MessageEntry(Ask, _D, "either"),
    45: MessageEntry(AskEnded, _D, "agent"),
    46: MessageEntry(Standing, _D, "agent"),
    47: MessageEntry(Offer, _D, "controller"),
    48: MessageEntry(Wanted, _D, "agent"),
    60: MessageEntry(Ping, _P, "controller"),
    61: MessageEntry(Pong, _P, "agent"),
    80: MessageEntry(PairHello, Channel.PAIRING, "either"),
    81: MessageEntry(PairShare, Channel.PAIRING, "either"),
    82: MessageEntry(PairConfirm, Channel.PAIRING, "either"),
    83: MessageEntry(PairRefused, Channel.PAIRING, "agent"),
    90: MessageEntry(Register, _R, "agent"),
    91: MessageEntry(Registered, _R, "relay"),
    92: MessageEntry(Dial, _R, "relay"),
    100: MessageEntry(Configure, _W, "agent"),
    101: MessageEntry(WorkerReady, _W, "worker", (1, 1)),
    102: MessageEntry(LoadSegment, _W, "agent", (1, 1)),
    103: MessageEntry(SegmentLoaded, _W, "worker"),
    104: MessageEntry(Forget, _W, "agent"),
    105: MessageEntry(Put, _W, "agent"),
    106: MessageEntry(Compute, _W, "agent", (1, 1)),
    107: MessageEntry(Computed, _W, "worker", (1, 1)),
    108: MessageEntry(ComputeFailed, _W, "worker"),
    109: MessageEntry(Release, _W, "agent"),
    110: MessageEntry(Freed, _W, "worker"),
    111: MessageEntry(MeasureTask, _W, "agent", (1, 1)),
    112: MessageEntry(MeasuredTask, _W, "worker"),
    113: MessageEntry(TryProcessor, _W, "agent"),
    114: MessageEntry(ProcessorTried, _W, "worker"),
    115: MessageEntry(Limit, _W, "agent"),
}

NUMBER_OF: dict[type[Message], int] = {entry.type: number for number, entry in MESSAGES.items()}
