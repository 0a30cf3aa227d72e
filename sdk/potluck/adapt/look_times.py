"""When the adapter looks at a run: as often as a small part of the run's time pays for. It looks
before that where steps take another time than at the latest look, or another plan is at work. Pure.
"""

from math import ceil

WINDOW = 8  # steps of a look, and at least between two
LOOKING_FRAC = 0.02  # of the time of a run, at most, goes into looking and planning
CHANGED_FRAC = 0.25  # a choice: medians of a window differ by a tenth on a busy machine


def rest_steps(spent_s: float, step_s: float) -> int:
    """For how many steps nothing is looked at after a look.

    Parameters
    ----------
    spent_s
        What it took, s.
    step_s
        Of a step, s.
    """
    return ceil(spent_s / LOOKING_FRAC / step_s)


class LookTimes:
    """The looks at one run.

    Parameters
    ----------
    step
        The run's number of steps (or requests) at the beginning.
    """

    def __init__(self, step: int) -> None:
        self._due = self._earliest = step + WINDOW
        self._usual: tuple[object, float] | None = None
        self._may_hurry = True

    def is_due(self, step: int, plan: object, took_s: float) -> bool:
        """Whether to look now; then nothing is due for a window.

        A look before its time that has changed nothing is followed by none: what such looks cost is
        at most as much again as the others.

        Parameters
        ----------
        step
            The number of steps by now.
        plan
            At work; times of others are not compared.
        took_s
            Of one of the latest steps, the median, s.
        """
        if self._usual is None:
            self._usual = plan, took_s
        elif self._usual[0] != plan:  # nobody has looked at it yet
            self._usual = plan, took_s
            self._due = min(self._due, step + WINDOW)
        ratio = took_s / self._usual[1] if min(took_s, self._usual[1]) > 0 else 1.0
        hurries = self._may_hurry and max(ratio, 1 / ratio) >= 1 + CHANGED_FRAC
        if step < self._due and not (hurries and step >= self._earliest):
            return False
        self._may_hurry = step >= self._due
        self._usual = plan, took_s
        self._due = self._earliest = step + WINDOW
        return True

    def looked(self, step: int, spent_s: float, step_s: float, *, acts: bool, waits: bool) -> None:
        """What the look at this step has brought.

        Parameters
        ----------
        step
            At which it began.
        spent_s
            The processor time that it took, s.
        step_s
            Of a step, s.
        acts
            Whether another plan follows: then the next change is looked at at once, too.
        waits
            Whether a switch is thought of: then the next window is looked at.
        """
        rest = 0 if waits else rest_steps(spent_s, step_s)
        self._due = step + max(WINDOW, rest)
        self._may_hurry = self._may_hurry or acts or waits
