"""What Triton's clients ask for beside KServe's protocol: a model's configuration, its statistics,
and which models there are. Pure.

https://github.com/triton-inference-server/server/tree/main/docs/protocol: the extensions "model
configuration" and "statistics", and of "model repository" the index. Models come and go where
they are served, not by HTTP.
"""

from collections.abc import Sequence

from potluck.serve.gateway.protocol import Port
from potluck.serve.stats import ServiceStats, TextStats

TYPES = {"BYTES": "TYPE_STRING"}  # others have the protocol's name behind TYPE_
NS = 1_000_000_000


def config(
    name: str, inputs: Sequence[Port], outputs: Sequence[Port], max_rows: int
) -> dict[str, object]:
    """The configuration of a model.

    Parameters
    ----------
    name
        Of the service.
    inputs, outputs
        As its metadata says.
    max_rows
        The most rows of one request.
    """
    is_batched = all(port.shape[:1] == (-1,) for port in (*inputs, *outputs))

    def rows(ports: Sequence[Port]) -> list[dict[str, object]]:
        return [
            {
                "name": port.name,
                "data_type": TYPES.get(port.datatype, f"TYPE_{port.datatype}"),
                "format": "FORMAT_NONE",
                "dims": [*port.shape[is_batched:]],
            }
            for port in ports
        ]

    found: dict[str, object] = {
        "name": name,
        "platform": "potluck",
        "backend": "potluck",
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": max_rows if is_batched else 0,
        "input": rows(inputs),
        "output": rows(outputs),
    }
    if is_batched:  # rows of several requests are computed together
        found["dynamic_batching"] = {}
    return found


def statistics(name: str, stats: ServiceStats | TextStats) -> dict[str, object]:
    """What a model has done since it is served.

    Of refusals the time is not counted, nor apart what inputs and outputs take on their way: that
    is a part of `compute_infer`. Of texts, `success` has the seconds of their tokens.

    Parameters
    ----------
    name
        Of the service.
    stats
        Of it.
    """
    if isinstance(stats, TextStats):
        executions, n_failed = 0, stats.n_refused + stats.n_failed
        n_over = inferences = stats.n_asked - n_failed - stats.n_under_way
        queue_s = 0.0
    else:
        n_over, n_failed = stats.n_answered, stats.n_refused + stats.n_failed
        inferences, executions = stats.n_rows, stats.n_batches
        queue_s = stats.queue_s

    def took(count: int, seconds: float = 0.0) -> dict[str, int]:
        return {"count": count, "ns": round(seconds * NS)}

    return {
        "name": name,
        "version": "1",
        "inference_count": inferences,
        "execution_count": executions,
        "inference_stats": {
            "success": took(n_over, stats.total_s),
            "fail": took(n_failed),
            "queue": took(n_over, queue_s),
            "compute_input": took(0),
            "compute_infer": took(n_over, stats.total_s - queue_s),
            "compute_output": took(0),
            "cache_hit": took(0),
            "cache_miss": took(0),
        },
        "batch_stats": [],
    }


def index_row(name: str, *, is_ready: bool) -> dict[str, str]:
    """A model in the index of what there is.

    Parameters
    ----------
    name
        Of the service.
    is_ready
        Whether a device has it.
    """
    state = "READY" if is_ready else "UNAVAILABLE"
    reason = "" if is_ready else "no device that has it is left"
    return {"name": name, "version": "1", "state": state, "reason": reason}
