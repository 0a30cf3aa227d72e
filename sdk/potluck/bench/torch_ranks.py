"""The same pipeline by `torch.distributed.pipelining` over gloo: one process per stage, steered by
lines.

The yardstick of benches `pipeline` and `zero_bubble`: no encryption, no plans, the stages in place
from the start, inputs and targets where they are needed. Run as a module it is one rank: it reads
`SCHEDULE STEPS`, does so many steps, and answers with seconds and the loss of the last one.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

SCHEDULES = ("1f1b", "gpipe")
ZERO_BUBBLE = ("zb-interleaved", "zb-v")  # of two stages a rank
_CLASSES = {
    "1f1b": "Schedule1F1B",
    "gpipe": "ScheduleGPipe",
    "zb-interleaved": "ScheduleInterleavedZeroBubble",
    "zb-v": "ScheduleZBVZeroBubble",
}
LEARNING_RATE = 1e-3


class Ranks:
    """`n` processes, one stage each or two, of network `kind`, ready for `schedules`; use as a
    context manager.
    """

    _module = "potluck.bench.torch_ranks"  # what a process runs

    def __init__(
        self,
        kind: str,
        n: int,
        *,
        n_micro_batches: int,
        micro_batch: int,
        schedules: tuple[str, ...] = SCHEDULES,
    ) -> None:
        self._n = n
        self._setting = {
            "schedules": schedules,
            "kind": kind,
            "n": n,
            "n_micro_batches": n_micro_batches,
            "micro_batch": micro_batch,
        }

    def __enter__(self) -> "Ranks":
        self._folder = tempfile.TemporaryDirectory(prefix="potluck-bench-")
        setting = {**self._setting, "store": str(Path(self._folder.name) / "store")}
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._ranks = [
            subprocess.Popen(
                [sys.executable, "-m", self._module, json.dumps({**setting, "rank": rank})],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=environment,
            )
            for rank in range(self._n)
        ]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for rank in self._ranks:
            rank.communicate()  # closing its input ends it
        self._folder.cleanup()

    def steps(self, schedule: str, n_steps: int) -> tuple[float, float]:
        """Seconds of so many steps, and the mean loss of the last one."""
        for rank in self._ranks:
            assert rank.stdin is not None
            rank.stdin.write(f"{schedule} {n_steps}\n")
            rank.stdin.flush()
        answers = [
            json.loads(rank.stdout.readline()) for rank in self._ranks if rank.stdout is not None
        ]
        # a rank that does not have the last stage says 0
        return max(seconds for seconds, _ in answers), float(max(loss for _, loss in answers))


def blocks_of(stage: int, n_stages: int, n_blocks: int) -> range:
    """Which blocks a stage has: contiguous, as equal as they can be."""
    return range(stage * n_blocks // n_stages, (stage + 1) * n_blocks // n_stages)


def serve(setting: dict[str, Any], made: "Callable[[], Callable[[str, int], Any]]") -> None:
    """Be one rank: answer each line `NAME STEPS` with what a side says of so many steps.

    Parameters
    ----------
    setting
        Of the rank: `store`, `rank` and `n`.
    made
        Makes the side, once its group is there.
    """
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{setting['store']}",
        rank=setting["rank"],
        world_size=setting["n"],
    )
    run = made()
    for line in sys.stdin:
        name, n_steps = line.split()
        sys.stdout.write(json.dumps(run(name, int(n_steps))) + "\n")
        sys.stdout.flush()
    distributed.destroy_process_group()


def _pipelines(setting: dict[str, Any]) -> "Callable[[str, int], Any]":
    from potluck.bench.networks import NETWORKS

    network, x, y = NETWORKS[setting["kind"]](setting["n_micro_batches"] * setting["micro_batch"])
    made = {name: _Pipeline(name, network, x, y, setting) for name in setting["schedules"]}
    return lambda name, n_steps: made[name].run(n_steps)


def stages_of(schedule: str, rank: int, n: int) -> tuple[int, ...]:
    """The stages of a rank.

    >>> stages_of("zb-v", 0, 2), stages_of("zb-interleaved", 0, 2), stages_of("1f1b", 0, 2)
    ((0, 3), (0, 2), (0,))
    """
    if schedule == "zb-v":
        return rank, 2 * n - 1 - rank
    return (rank, rank + n) if schedule == "zb-interleaved" else (rank,)


class _Pipeline:
    """This rank's stages under one schedule."""

    def __init__(
        self,
        name: str,
        network: "torch.nn.Sequential",
        x: "torch.Tensor",
        y: "torch.Tensor",
        setting: dict[str, Any],
    ) -> None:
        import copy

        import torch
        from torch.distributed import pipelining

        rank, n = setting["rank"], setting["n"]
        own = stages_of(name, rank, n)
        n_stages = n * len(own)
        modules = [
            torch.nn.Sequential(
                *(copy.deepcopy(network[i]) for i in blocks_of(stage, n_stages, len(network)))
            ).train()
            for stage in own
        ]
        parameters = [p for module in modules for p in module.parameters()]
        self._optimizer = torch.optim.AdamW(parameters, LEARNING_RATE)
        stages = [
            pipelining.PipelineStage(module, stage, n_stages, torch.device("cpu"))
            for module, stage in zip(modules, own, strict=True)
        ]
        self._schedule = getattr(pipelining, _CLASSES[name])(
            stages if len(stages) > 1 else stages[0],
            setting["n_micro_batches"],
            loss_fn=torch.nn.functional.cross_entropy,
        )
        self._inputs = (x,) if 0 in own else ()
        self._targets, self._is_last = y, n_stages - 1 in own

    def run(self, n_steps: int) -> tuple[float, float]:
        """Seconds, and the loss of the last step where this rank has it."""
        from torch import distributed

        losses: list[Any] = []
        distributed.barrier()
        start_s = time.perf_counter()
        for _ in range(n_steps):
            losses.clear()
            self._optimizer.zero_grad()
            if self._is_last:
                self._schedule.step(*self._inputs, target=self._targets, losses=losses)
            else:
                self._schedule.step(*self._inputs)
            self._optimizer.step()
        distributed.barrier()
        return time.perf_counter() - start_s, sum(loss.item() for loss in losses) / max(
            1, len(losses)
        )


if __name__ == "__main__":
    _setting = json.loads(sys.argv[1])
    serve(_setting, lambda: _pipelines(_setting))
