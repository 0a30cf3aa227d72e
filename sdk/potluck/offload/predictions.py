"""What the ways to answer a request should take: seconds, by the simulator, and memory. Pure.

Programs are predicted once for bandwidths that are alike in two digits.
"""

from potluck.offload.split_table import SplitCase, SplitTable
from potluck.run.compiled_plan import CompiledPlan
from potluck.schedule import Compiled


class Predictions:
    """Of one case; `alone` is the program of the device without its helpers."""

    def __init__(self, case: SplitCase, alone: Compiled) -> None:
        self._case, self._alone = case, alone
        self._seconds: dict[tuple[int, str], float] = {}  # by program and bandwidth

    def seconds(self, compiled: Compiled, bytes_per_s: float) -> float:
        """What a request should take by this program."""
        key = id(compiled), f"{bytes_per_s:.2g}"
        if key not in self._seconds:
            self._seconds[key] = max(self._case.predict(compiled, float(key[1])).step_s)
        return self._seconds[key]

    def memory_bytes(
        self, model: CompiledPlan, device: str, table: SplitTable, bytes_per_s: float
    ) -> int:
        """What a device needs: the weights of the whole model once, and the most that any entry
        holds.

        Parameters
        ----------
        model
            The model, loaded on the device.
        device
            Its name.
        table
            Of splits.
        bytes_per_s
            At which it is used first.
        """

        def peak_bytes(compiled: Compiled) -> int:
            return self._case.predict(compiled, bytes_per_s).peak_bytes.get(device, 0)

        resting = self._case.problem.device(device).floor_bytes + model.held_bytes(device)
        needed = [resting + peak_bytes(program.compiled) for program in table.programs]
        # that of the whole model counts its weights
        return max([resting, *needed, peak_bytes(self._alone)])
