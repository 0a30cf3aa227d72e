"""How long each instruction of a program takes on its device."""

from potluck.records import Device
from potluck.schedule.program_builder import Annotation
from potluck.simulate import cost, equations
from potluck_wire.program import Instruction


def instruction_s(
    table: cost.CostTable, device: Device, item: Instruction, note: Annotation
) -> float:
    """Seconds in the compute resource. Profiled times for run and backward, copying speed for the
    rest.

    Parameters
    ----------
    table
        Of the problem.
    device
        Where it runs.
    item
        The instruction.
    note
        Its layers and rows, or its bytes.
    """
    if note.seconds is not None:
        return device.overhead_s + note.seconds
    if item.op == "run":
        return device.overhead_s + table.forward_s(device.name, note.start, note.stop, note.rows)
    if item.op == "backward":
        backward_s = table.of(note.recompute).backward_s
        return device.overhead_s + backward_s(device.name, note.start, note.stop, note.rows)
    if item.op in ("backward_input", "backward_weight"):
        weight_s = table.weight_s(device.name, note.start, note.stop, note.rows)
        if item.op == "backward_weight":
            return device.overhead_s + weight_s
        backward_s = table.of(note.recompute).backward_s
        return (
            device.overhead_s + backward_s(device.name, note.start, note.stop, note.rows) - weight_s
        )
    if item.op == "step":
        return equations.update_s(table, device, note.start, note.stop)
    if item.op == "norms":
        return equations.norms_s(table, device, note.start, note.stop)
    return equations.copy_s(device, note.nbytes)
