"""Scores of answers over a data set: each row counts once, whatever batch it is in."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from potluck.errors import UserError
from potluck.graph.arguments import Arguments
from potluck.run import tensors


class _Mean:
    """A mean over rows: of a score that is a mean over the rows of a batch, or a pair of a sum and
    what it is divided by, over all of them. torch's weighted means are such pairs.
    """

    def __init__(self, score: Callable[..., Any]) -> None:
        self._score = score
        self._total = 0.0
        self._weight = 0.0

    def update(self, rows: int, outputs: Any, targets: Sequence[Any]) -> None:
        from potluck.run.weighted_means import WeightedMeans

        with WeightedMeans() as means:
            found = self._score(outputs, *targets)
        if isinstance(found, tuple) and len(found) == 2:
            total, weight = map(tensors.score_of, found)
        else:
            mean = tensors.score_of(found)
            total, weight = means.parts_of(mean) or (mean * rows, rows)
        self._total += total
        self._weight += weight

    def result(self) -> Any:
        return self._total / self._weight if self._weight else float("nan")


class _Metric:
    """An object that keeps what it has seen itself, as those of torchmetrics."""

    def __init__(self, metric: Any) -> None:
        self._metric = metric
        if hasattr(metric, "reset"):
            metric.reset()

    def update(self, rows: int, outputs: Any, targets: Sequence[Any]) -> None:
        self._metric.update(outputs, *targets)

    def result(self) -> Any:
        found = self._metric.compute()
        return found.item() if getattr(found, "shape", None) == () else found


def evaluated(
    batches: Iterable[Sequence[Any]], answer: Callable[..., Any], n_inputs: int, score: Any
) -> Any:
    """What `score` says of all batches: a number, or one by each name.

    Parameters
    ----------
    batches
        Inputs, then targets; each [rows, ...].
    answer
        Gives the outputs for some inputs.
    n_inputs
        Of each batch.
    score
        As for `Run.evaluate`.

    Raises
    ------
    UserError
        There is no batch, or a score is no number.
    """
    scores = {name: _scorer(each) for name, each in _named(score).items()}
    seen = 0
    for batch in batches:
        rows = int(batch[0].shape[0])
        outputs = answer(*batch[:n_inputs])
        for each in scores.values():
            each.update(rows, outputs, batch[n_inputs:])
        seen += rows
    if not seen:
        raise UserError("there is nothing to evaluate: the data has no batch.")
    results = {name: each.result() for name, each in scores.items()}
    return results if isinstance(score, Mapping) else results[""]


def arguments_of(arguments: Arguments, score: Any) -> Arguments:
    """What batches may call their targets: as the (first) function among the scores does.

    Parameters
    ----------
    arguments
        Of the model.
    score
        As for `Run.evaluate`.
    """
    for each in _named(score).values():
        if not _keeps(each):
            return arguments.scored(each)
    return arguments


def _named(score: Any) -> Mapping[str, Any]:
    return score if isinstance(score, Mapping) else {"": score}


def _keeps(score: Any) -> bool:
    return hasattr(score, "update") and hasattr(score, "compute")


def _scorer(score: Any) -> "_Mean | _Metric":
    if _keeps(score):
        return _Metric(score)
    if not callable(score):
        raise UserError(
            f"a score is called with outputs and targets, and a {type(score).__name__} cannot be.",
            next_step='{"accuracy": lambda outputs, labels: ...}, or a metric of torchmetrics',
        )
    return _Mean(score)
