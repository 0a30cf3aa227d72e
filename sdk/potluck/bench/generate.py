"""Texts of a language model on one and on two agents, against `generate` of transformers in this
process with one thread, as each agent has.

The model has the shape of SmolLM2-135M and made-up weights in float32 (`layers` of its 30). Both
sides write greedily, from the same prompts, and what they write is compared. Times are of a token:
of one text alone, and of as many at once as the model has rows. The prompt is read before.
"""

import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate
from statistics import median
from typing import TYPE_CHECKING, Any

from potluck.bench import harness
from potluck.bench.harness import Result
from potluck.bench.llama import SHAPES, llama

if TYPE_CHECKING:
    from potluck.graph.language_model import LanguageModel
    from potluck.home import Home
    from potluck.records import Plan
    from potluck.run.run import Run

SETTINGS: Mapping[str, float] = {
    "layers": 30,
    "rows": 4,
    "max_length": 512,
    "prompt": 64,
    "tokens": 24,
    "repeats": 3,
}
GOALS = {
    "ratio_to_transformers": ("<=", 1.05),
    "ratio_to_transformers_rows": ("<=", 1.05),
    "ratio_to_transformers_prompt": ("<=", 1.05),
    "ratio_two_to_one": ("<=", 1.1),
    "texts_that_differ": ("<=", 0.0),
}
LENGTH = 2048  # of the longest text that the model has positions for


def run(settings: Mapping[str, float]) -> Result:
    """Write on one agent and on two."""
    import torch

    from potluck.graph.language_model import LanguageModel
    from potluck.home import Home

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        lm = llama(SHAPES["135m"], int(settings["layers"]), LENGTH)
        model = LanguageModel.from_transformers(
            lm, rows=int(settings["rows"]), max_length=int(settings["max_length"])
        )
        with Home.local(2) as home:
            figures = _measured(home, lm, model, settings)
    finally:
        torch.set_num_threads(before)
    return Result(name="generate", figures=figures, settings=settings, goals=GOALS)


def _measured(
    home: "Home", lm: Any, model: "LanguageModel", settings: Mapping[str, float]
) -> dict[str, float]:
    from potluck.planning.api import judge
    from potluck.records import Inference

    profile = home.profile(model, train=False).wait()
    names = [*home.devices]
    n_prompt, repeats = int(settings["prompt"]), int(settings["repeats"])
    figures, differ = dict[str, float](), 0
    one_s: dict[str, float] = {}
    for n in (1, 2):
        plan = _plan(model, names[:n])
        predicted_s = judge(plan, profile, Inference(batch=model.rows)).latency_s or 0.0
        running = home.deploy(plan, model, profile=profile).wait()
        for texts, word in ((1, ""), (model.rows, "_rows")):
            ours, theirs = _Ours(running, settings), _Theirs(lm, settings)
            sides = {"ours": partial(ours.write, texts), "theirs": partial(theirs.write, texts)}
            harness.interleaved(sides, repeats)
            differ += ours.last != theirs.last
            token_s, prompt_s = median(ours.token_s), median(ours.prompt_s)
            name = f"agents_{n}{word}"
            figures[f"{name}_token_ms"] = 1e3 * token_s
            figures[f"{name}_tokens_per_s"] = texts / token_s
            figures[f"{name}_prompt_tokens_per_s"] = texts * n_prompt / prompt_s
            one_s[f"{n}{word}"] = token_s
            if n == 1:
                figures[f"ratio_to_transformers{word}"] = token_s / median(theirs.token_s)
                if not word:
                    figures["ratio_to_transformers_prompt"] = prompt_s / median(theirs.prompt_s)
        figures[f"prediction_error_{n}_frac"] = abs(predicted_s / one_s[f"{n}_rows"] - 1)
        running.close()
    figures["ratio_two_to_one"] = one_s["2"] / one_s["1"]
    figures["texts_that_differ"] = float(differ)
    return figures


class _Side:
    """Who writes: what a prompt, and a token behind it, took each time, and the latest texts."""

    def __init__(self, settings: Mapping[str, float]) -> None:
        self.n_prompt, self.n_new = int(settings["prompt"]), int(settings["tokens"])
        self.token_s: list[float] = []
        self.prompt_s: list[float] = []
        self.last: list[list[int]] = []


class _Ours(_Side):
    def __init__(self, running: "Run", settings: Mapping[str, float]) -> None:
        super().__init__(settings)
        self._run = running

    def write(self, n: int) -> None:
        """So many texts at once."""
        texts = [
            self._run.generate(prompt, max_new_tokens=self.n_new)
            for prompt in _prompts(n, self.n_prompt)
        ]
        self.last = [text.wait().tokens for text in texts]
        first, *later = texts[-1].token_s
        self.prompt_s.append(first)
        self.token_s.append(sum(later) / len(later))


class _Theirs(_Side):
    def __init__(self, lm: Any, settings: Mapping[str, float]) -> None:
        super().__init__(settings)
        self._lm = lm

    def write(self, n: int) -> None:
        """So many texts at once."""
        import torch

        ids = torch.tensor(_prompts(n, self.n_prompt))
        how = {"do_sample": False, "attention_mask": torch.ones_like(ids), "pad_token_id": 0}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            one = partial(self._lm.generate, ids, max_new_tokens=1, **how)
            first_s = harness.elapsed_s(one)
            found: list[Any] = []
            all_s = harness.elapsed_s(
                lambda: found.append(self._lm.generate(ids, max_new_tokens=self.n_new, **how))
            )
        self.prompt_s.append(first_s)
        self.token_s.append((all_s - first_s) / (self.n_new - 1))
        self.last = found[0][:, ids.shape[1] :].tolist()


def _prompts(n: int, length: int) -> list[list[int]]:
    """So many, each with other tokens."""
    return [[1 + (7 * i + 3 * k) % 1000 for i in range(length)] for k in range(n)]


def _plan(model: "LanguageModel", devices: Sequence[str]) -> "Plan":
    """A stage for each device, of about as many operations."""
    from potluck.records import Plan, Stage

    ends = [*accumulate(layer.forward_flop for layer in model.layers())]
    targets = [ends[-1] * k / len(devices) for k in range(1, len(devices))]
    inner = [1 + sum(end < target for end in ends) for target in targets]
    bounds = [0, *inner, len(ends)]
    stages = tuple(
        Stage(start=start, stop=stop, devices=(device,), shares=(model.rows,))
        for device, start, stop in zip(devices, bounds, bounds[1:], strict=False)
    )
    return Plan(
        planner="by hand",
        model=model.name,
        stages=stages,
        micro_batch=model.rows,
        n_micro_batches=1,
        training=False,
    )
