"""From a home and a model of the library to a Profile, as if it had been measured: what-if without
a single device.

Layer times are roofline estimates and say so.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potluck.errors import UserError
from potluck.graph import variants
from potluck.graph.modelgraph import ModelGraph
from potluck.planning.formats import pipedream
from potluck.profile import roofline
from potluck.profile.library import HomeSpec, load_home, load_model
from potluck.profile.profiles import Measurements, Profile, can_train
from potluck.records import Inference, Layer, LayerCost, Problem, QoE, Training

if TYPE_CHECKING:
    from potluck.graph import Model

ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
TOKEN_BYTES = 8  # a class or a token is an int64, as target and as answer


def merged(graph: ModelGraph, max_layers: int) -> tuple[int, ...]:
    """Bounds of at most `max_layers` layers: layer i is the nodes [bounds[i], bounds[i + 1]).

    The lightest layer (by its share of flop and weights) joins the neighbour across the dearer cut,
    the lighter one if they are alike, until few enough are left: so cuts stay where few tensors are
    alive. A neighbour that would grow beyond twice an even share is taken last, and so is one in
    another branch. At 4 nodes of equal weight and cuts of 9, 1, 9 bytes, two layers are [0, 2) and
    [2, 4).

    Raises
    ------
    UserError
        `max_layers` is below 1.
    """
    if max_layers < 1:
        raise UserError(f"a model needs at least one layer; got max_layers={max_layers}.")
    alive = graph.live_bytes()
    flop, weights = max(graph.forward_flop, 1), max(graph.parameter_bytes, 1)
    share = [node.forward_flop / flop + node.parameter_bytes / weights for node in graph.nodes]
    bounds = list(range(len(graph.nodes) + 1))
    ends = {end for chain in graph.branches().chains for end in chain}
    limit = 2 * sum(share) / max_layers
    while len(bounds) - 1 > max_layers:
        lightest = min(range(len(share)), key=share.__getitem__)
        sides = [bound for bound in (lightest, lightest + 1) if 0 < bound < len(share)]

        def preference(bound: int) -> tuple[bool, bool, int, float]:
            together = share[bound - 1] + share[bound]
            return bounds[bound] in ends, together > limit, -alive[bounds[bound] - 1], together

        joint = min(sides, key=preference)  # the bound that goes
        share[joint - 1 : joint + 1] = [share[joint - 1] + share[joint]]
        del bounds[joint]
    return tuple(bounds)


def estimate(
    home: str | Path | HomeSpec,
    model: "str | Path | ModelGraph | Model",
    *,
    max_layers: int = 32,
    rows: Sequence[int] = ROWS,
    decode_rows: int = 1,
) -> Profile:
    """A profile of a home that need not exist: layer times estimated from data sheets, for
    `potluck.plan`.

    Targets and answers are one class a row, or one token for each token where the model's output
    has a number for each.

    Parameters
    ----------
    home, model
        Names in the library (`potluck plan list`), or files of your own; or a `potluck.Model`.
        `qwen3-0.6b:float16` is in half precision, and `qwen3-0.6b:decode` writes: each row is one
        new token, the keys and values of a text before it are kept. The layers of
        `resnet50:bfloat16-links` hand on bfloat16, of `:int8-links` int8: see `Model.rounded`.
    max_layers
        The model's operators are merged into at most so many layers.
    rows
        The batch sizes that layer times are estimated at.
    decode_rows
        Texts whose keys and values are kept, where the model writes.

    Raises
    ------
    FileError
        Where a device's rates are not known.
    UserError
        Nothing of that name is in the library, or this is no model.
    """
    home = home if isinstance(home, HomeSpec) else load_home(home)
    if getattr(model, "pieces", None):
        return _of_lanes(home, model, rows)
    graph = _graph(model, decode_rows).in_order()
    bounds = merged(graph, max_layers)
    output_bytes = sum(node.output_bytes for node in graph.nodes if node.name in graph.outputs)
    speaks = graph.sequence is not None and output_bytes >= 4 * graph.sequence
    costs = {
        name: roofline.estimate(spec, graph, rows, bounds) for name, spec in home.specs.items()
    }
    answer_bytes = TOKEN_BYTES * (graph.sequence or 1) if speaks else TOKEN_BYTES
    made = _profile(home, graph, graph.layers(bounds, branched=True), costs, answer_bytes)
    notes = ["estimated from data sheets, not measured"]
    notes += [
        f"{name} is used in several places, which training keeps on one device; planned here as if "
        "each had it"
        for name in graph.tied
    ]
    made = replace(made, notes=tuple(notes), graph=graph, bounds=bounds)
    if not variants.FOR_ANSWERS_ONLY.isdisjoint(variants.split(graph.name)[1]):
        return replace(made, training=None, untrained=f"{graph.name} is for inference: plan that.")
    return made


def _of_lanes(home: HomeSpec, model: Any, rows: Sequence[int]) -> Profile:
    """The profile of a model that is divided by tensor, in its own layers."""
    measured = {}
    for train in (False, True)[: 1 + model.trains]:
        layers, operators = model.layers(train), model.operators(train)
        answer_bytes = layers[-1].output_bytes
        inputs = sum(tensor.row_bytes for tensor in model.inputs())
        measured[train] = Measurements(
            layers=layers,
            costs={
                name: tuple(
                    roofline.layer_cost(spec, nodes, rows, train=train) for nodes in operators
                )
                for name, spec in home.specs.items()
                if not train or any(can_train(d.backends) for d in home.devices if d.name == name)
            },
            input_bytes=inputs,
            target_bytes=sum(tensor.row_bytes for tensor in model.inputs(train)) - inputs,
            result_bytes=answer_bytes,
        )
    return Profile(
        model=model.name,
        signature="",
        devices=home.devices,
        network=home.network,
        training=measured.get(True),
        inference=measured[False],
        home=home.name,
        untrained=model.untrained,
        notes=("estimated from data sheets, not measured",),
    )


def _graph(model: "str | Path | ModelGraph | Model", decode_rows: int) -> ModelGraph:
    if isinstance(model, ModelGraph):
        return model
    if isinstance(model, str):
        name, words = variants.split(model)
        return variants.of(load_model(name), words, decode_rows)
    if isinstance(model, Path):
        return load_model(model)
    if not hasattr(model, "graph"):
        raise UserError(
            f"a model of the library or a potluck.Model is needed, got {type(model).__name__}.",
            next_step="Make one: potluck.Model.from_torch(net, example).",
        )
    return model.graph()


def imported(
    home: str | Path | HomeSpec,
    graph_text: str,
    rows: int,
    *,
    max_layers: int = 32,
    name: str = "graph",
) -> Profile:
    """A profile from PipeDream's `graph.txt`, measured there at minibatches of `rows`, for training
    on a home.

    It knows one kind of device, so every device of the home takes as long; between batch sizes time
    is in proportion.

    Harlap et al., "PipeDream", 2018: the format of its profiler.

    Parameters
    ----------
    home
        A home of the library, or a file of your own.
    graph_text
        The text of `graph.txt`.
    rows
        Rows of the minibatch that its times were measured with.
    max_layers
        The graph's nodes are merged into at most so many layers.
    name
        What plans call the model.
    """
    home = home if isinstance(home, HomeSpec) else load_home(home)
    graph = pipedream.read(graph_text)
    model, tables = pipedream.model_of(graph, rows, name), pipedream.costs_of(graph, rows)
    bounds = merged(model, max_layers)
    costs = tuple(_summed(tables[start:stop]) for start, stop in pairwise(bounds))
    made = _profile(
        home,
        model,
        model.layers(bounds),
        {device.name: costs for device in home.devices},
        TOKEN_BYTES,
    )
    return replace(made, notes=("times of a PipeDream profile, the same on every device",))


def _summed(tables: Sequence[LayerCost]) -> LayerCost:
    """The times of a run of operators."""
    return LayerCost(
        rows=tables[0].rows,
        forward_s=tuple(map(sum, zip(*(table.forward_s for table in tables), strict=True))),
        backward_s=tuple(map(sum, zip(*(table.backward_s for table in tables), strict=True))),
        source=tables[0].source,
    )


def _profile(
    home: HomeSpec,
    graph: ModelGraph,
    layers: tuple[Layer, ...],
    costs: dict[str, tuple[LayerCost, ...]],
    answer_bytes: int,
) -> Profile:
    """The profile of a home that nobody measured.

    Training and inference alike, but for who cannot train.
    """
    trained = {
        device.name: costs[device.name] for device in home.devices if can_train(device.backends)
    }
    measured = Measurements(
        layers=layers,
        costs=costs,
        input_bytes=sum(item.row_bytes for item in graph.inputs),
        target_bytes=answer_bytes,
        result_bytes=answer_bytes,
    )
    return Profile(
        model=graph.name,
        signature="",
        devices=home.devices,
        network=home.network,
        training=replace(measured, costs=trained),
        inference=measured,
        home=home.name,
    )


def problem(
    home: HomeSpec,
    graph: ModelGraph,
    workload: Training | Inference,
    qoe: QoE | None = None,
    *,
    max_layers: int = 32,
    rows: Sequence[int] = ROWS,
) -> Problem:
    """What a planner is asked, at estimated layer times; at most `max_layers` layers.

    Parameters
    ----------
    home
        A home of the library.
    graph
        The model's operators with their costs.
    workload, qoe
        What is planned for, and the user's limits; none by default.
    max_layers
        The model's operators are merged into at most so many layers.
    rows
        The batch sizes that layer times are estimated at.
    """
    return estimate(home, graph, max_layers=max_layers, rows=rows).problem(workload, qoe)
