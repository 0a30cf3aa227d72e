"""What an emulated device is told and answers while something else takes its processor. Pure."""

from dataclasses import replace

from potluck_agent.core.events import Action, ToPeer, ToWorker
from potluck_wire.messages import Compute, Measured


def loaded(action: Action, load: float) -> Action:
    """The action as it is beside something else: a task lasts longer, a measurement shows it.

    Parameters
    ----------
    action
        Any; others stay as they are.
    load
        How many times longer tasks take.
    """
    match action:
        case ToWorker(message=Compute() as task) if task.lasts_s:
            return replace(action, message=replace(task, lasts_s=task.lasts_s * load))
        case ToPeer(message=Measured() as measured):
            longer = replace(
                measured,
                forward_s=tuple(seconds * load for seconds in measured.forward_s),
                backward_s=tuple(seconds * load for seconds in measured.backward_s),
            )
            return replace(action, message=longer)
    return action
