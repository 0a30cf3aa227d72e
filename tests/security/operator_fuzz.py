"""`python -m tests.security.operator_fuzz SEED START STOP` makes these calls as a worker would.

A line tells of each.

A line is the number, then how it ended: a digest of all outputs and gradients, or the cause of a
refusal and its text.
"""

import hashlib
import sys

import torch
from tests.security.operator_calls import call, graph_of, made

from potluck_agent.worker import sandbox, torch_setup
from potluck_agent.worker.dropout import Masks
from potluck_agent.worker.interpreter import Interpreter
from potluck_wire.graph import SegmentError

MEMORY_BYTES = 512 << 20


def outcome(one):
    """How a call ends. Anything but a result or a SegmentError is raised."""
    torch.manual_seed(0)
    graph, inputs = graph_of(one)
    leaves = [x.requires_grad_() if one.train and x.is_floating_point() else x for x in inputs]
    state = [made(one.args[0])] if graph.buffers else []
    results = []
    try:
        interpreter = Interpreter(graph, Masks(0).operators())
        interpreter.run(
            leaves, state, train=one.train, observe=lambda _, value: results.append(value)
        )
    except SegmentError as error:
        return f"{error.cause}: {error.text}"
    if not results:
        return "nothing: it is left out outside training"
    outputs = list(results[0]) if isinstance(results[0], list | tuple) else results
    learning = [y for y in outputs if y.requires_grad and y.numel()]
    try:
        if learning:
            torch.autograd.backward(learning, [torch.ones_like(y) for y in learning])
    except (RuntimeError, IndexError) as error:
        return f"backward: {error}"
    gradients = [x.grad.to_dense() for x in leaves if x.grad is not None]
    return digest([*outputs, *gradients, *state])


def digest(tensors):
    """The same for the same shapes, types and bits."""
    text = hashlib.blake2b(digest_size=12)
    for tensor in tensors:
        text.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        plain = tensor.detach().resolve_conj().contiguous().reshape(-1)
        text.update(plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b"")
    return text.hexdigest()


def main(seed, start, stop):
    """Each call is told before it is made, so that a crash has a name."""
    torch_setup.prepare(1)
    sandbox.confine(MEMORY_BYTES, sandbox.nowhere())
    for number in range(start, stop):
        one = call(seed, number)
        sys.stdout.write(f"{number} ")
        sys.stdout.flush()
        try:
            end = outcome(one)
        except Exception as error:
            end = f"!{type(error).__name__}: {error}"
        sys.stdout.write(" ".join(end.split()) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
