"""The papers' settings as problems: which home trains or runs which model."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from potluck.profile import estimate
from potluck.records import Inference, Problem, QoE, Training

DORA_HOMES = ("smart-home-1", "smart-home-2", "traffic-monitor", "edge-cluster")
DORA_MODELS = ("bert-base", "qwen3-0.6b", "qwen3-1.7b", "omni-7b")
DEEPCEE_HOMES = ("deepcee-1", "deepcee-2")
DEEPCEE_MODELS = ("resnet101-cifar", "efficientnet-b1-cifar", "bert-small", "gpt2")
ASTEROID_HOMES = tuple(f"asteroid-{home}-{rate}" for home in "abcd" for rate in (100, 1000))
ASTEROID_MODELS = ("efficientnet-b1-cifar", "mobilenet-v2-cifar", "resnet50", "bert-small-32")


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperCase:
    """One problem of the benches; `train` or inference, of `group` dora, asteroid or deepcee."""

    home: str
    model: str
    train: bool
    batch: int
    group: str

    @property
    def name(self) -> str:
        return f"{self.home} {self.model} {'train' if self.train else 'infer'}"

    def problem(self, qoe: QoE | None = None, *, max_layers: int = 32) -> Problem:
        """The problem at estimated layer times."""
        workload = Training(batch=self.batch) if self.train else Inference(batch=self.batch)
        profile = estimate.estimate(
            self.home, self.model, max_layers=max_layers, decode_rows=self.batch
        )
        return profile.problem(workload, qoe)


def dora() -> Iterator[PaperCase]:
    """Dora's four settings and four models, training and inference."""
    for home, model, train in product(DORA_HOMES, DORA_MODELS, (True, False)):
        yield PaperCase(home=home, model=model, train=train, batch=32 if train else 8, group="dora")


def asteroid() -> Iterator[PaperCase]:
    """Asteroid's eight environments and four models, training."""
    for home, model in product(ASTEROID_HOMES, ASTEROID_MODELS):
        yield PaperCase(home=home, model=model, train=True, batch=128, group="asteroid")


def deepcee(batch: int = 128) -> Iterator[PaperCase]:
    """DeepCEE's two settings and four models, training."""
    for home, model in product(DEEPCEE_HOMES, DEEPCEE_MODELS):
        yield PaperCase(home=home, model=model, train=True, batch=batch, group="deepcee")
