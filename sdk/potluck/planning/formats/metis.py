"""Metis' files: a problem as its planner takes it (profiles, hostfile, clusterfile), and its
ranking of plans, read.

The formats of github.com/SamsungLabs/Metis (Um et al., USENIX ATC 2024), whose licence keeps its
code elsewhere. It knows four names of devices, one bandwidth per device, and activations of one
size: the mapping is part of what is written. Its plans with tensor parallelism are not ours to
judge and left out.
"""

import json
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from statistics import median

from potluck.errors import PlanError, UserError
from potluck.planning.building_blocks.build import build
from potluck.planning.building_blocks.device_classes import alike
from potluck.records import HOME, Plan, Problem, Training
from potluck.simulate import cost, equations

NAMES = ("A100", "V100", "P100", "T4")  # the device types that its code knows
MS = 1e-3
MIB = 2**20
GIB = 2**30
MAX_ROWS = 64
_NUMBER = "[0-9]{1,9}"
_LIST = rf"\[({_NUMBER}(?:, *{_NUMBER})*)\]"
_RANK = re.compile(
    rf"^\s*\d+, [\d.eE+-]+, \((.*?)\), {_LIST}, \[(.*)\], ({_NUMBER}), {_LIST}\s*$", re.MULTILINE
)
_PAIR = re.compile(r"[(\[](\d+), (\d+)[)\]]")


def files(problem: Problem) -> dict[str, str]:
    """Name to content of everything that Metis reads, with a README that has the command and the
    mapping.

    Raises
    ------
    UserError
        The problem is inference, or has more kinds of devices than Metis knows.
    """
    if not isinstance(problem.workload, Training):
        raise UserError(
            "Metis plans training only.", next_step="Ask for training: --train batch=32."
        )
    types, table = types_of(problem), cost.CostTable(problem)
    sizes = [
        rows for rows in (2**k for k in range(7)) if rows <= min(MAX_ROWS, problem.workload.batch)
    ]
    found = {
        f"profile/DeviceType.{name}_tp1_bs{rows}.json": _profile(problem, table, members[0], rows)
        for name, members in types.items()
        for rows in sizes
    }
    order = [name for members in types.values() for name in members]
    found["hostfile"] = "\n".join(f"0.0.0.{i + 1} slots=1" for i in range(len(order)))
    found["clusterfile.json"] = json.dumps(
        {f"0.0.0.{i + 1}": _node(problem, name, types) for i, name in enumerate(order)}, indent=1
    )
    found["README.txt"] = _readme(problem, types, sizes[-1])
    return found


def types_of(problem: Problem) -> dict[str, tuple[str, ...]]:
    """Which of Metis' names stands for which devices: those alike have one name, the fastest the
    first.

    Raises
    ------
    UserError
        There are more kinds of devices than Metis knows.
    """
    classes = [tuple(problem.devices[i].name for i in members) for members in alike(problem)]
    if len(classes) > len(NAMES):
        raise UserError(
            f"Metis knows {len(NAMES)} kinds of devices; this home has {len(classes)}.",
            next_step="Leave some out: --without NAME.",
        )
    classes.sort(
        key=lambda members: sum(layer.forward_s[-1] for layer in problem.costs[members[0]])
    )
    return dict(zip(NAMES, classes, strict=False))


def _profile(problem: Problem, table: cost.CostTable, device: str, rows: int) -> str:
    n = len(problem.layers)
    compute_ms = [table.compute_s(device, i, i + 1, rows) / MS for i in range(n)]
    parameters = [layer.parameter_bytes for layer in problem.layers]
    copies = table.trained_copies
    memory_mb = [
        (layer.parameter_bytes + copies * layer.trained_bytes + rows * layer.activation_bytes) / MIB
        for layer in problem.layers
    ]
    update_ms = equations.update_s(table, problem.device(device), 0, n) / MS
    document = {
        "model": {
            "model_name": problem.model,
            "num_layers": n,
            "parameters": {
                "total_parameters_bytes": sum(parameters),
                "parameters_per_layer_bytes": parameters,
            },
        },
        "execution_time": {
            "total_time_ms": sum(compute_ms) + update_ms,
            "forward_backward_time_ms": sum(compute_ms),
            "batch_generator_time_ms": 0.0,
            "layernorm_grads_all_reduce_time_ms": 0.0,
            "embedding_grads_all_reduce_time_ms": 0.0,
            "optimizer_time_ms": update_ms,
            "layer_compute_total_ms": compute_ms,
        },
        "execution_memory": {"total_memory": sum(memory_mb), "layer_memory_total_mb": memory_mb},
    }
    return json.dumps(document, indent=1) + "\n"


def _node(problem: Problem, device: str, types: Mapping[str, tuple[str, ...]]) -> dict[str, object]:
    """Its rate is that of its slowest path, in MiB per millisecond: so that its bytes / rate are
    its milliseconds.
    """
    rates = [
        problem.network.bandwidth(a, b)
        for a, b in problem.network.paths
        if a == device and b != HOME
    ]
    rate = min(rates, default=float(GIB)) / MIB * MS
    memory_gib = cost.budget_bytes(problem, problem.device(device)) / GIB
    name = next(name for name, members in types.items() if device in members)
    return {
        "instance_type": name,
        "inter_bandwidth": rate,
        "intra_bandwidth": rate,
        "memory": memory_gib,
    }


def _readme(problem: Problem, types: Mapping[str, tuple[str, ...]], max_rows: int) -> str:
    cut_bytes = int(median(layer.output_bytes for layer in problem.layers[:-1] or problem.layers))
    command = (
        f"python cost_het_cluster.py --model_name={problem.model} "
        f"--num_layers={len(problem.layers)} --gbs={problem.workload.batch} "
        f"--hidden_size={cut_bytes} --sequence_length=1 --vocab_size=1 --hostfile_path=hostfile "
        "--clusterfile_path=clusterfile.json --profile_data_path=profile "
        f"--max_profiled_tp_degree=1 --max_profiled_batch_size={max_rows} "
        f"--min_group_scale_variance=1 --max_permute_len={len(problem.devices)}"
    )
    legend = "\n".join(f"{name}: {', '.join(members)}" for name, members in types.items())
    return (
        f"{problem.model} on {len(problem.devices)} devices for Metis' planner. Its names stand "
        f"for:\n{legend}\n\n"
        "Run it in its own folder, with these paths (PYTHONHASHSEED decides its order of types, so "
        "fix it):\n"
        f"PYTHONHASHSEED=0 {command} > metis.log\n\n"
        "Every cut is taken to carry the bytes of the median one (hidden_size), as Metis knows one "
        "size only.\n"
        "Then judge its ranking on shared links: potluck plan judge metis.log HOME MODEL --train "
        "batch=...\n"
    )


# --- its plans ------------------------------------------------------------------------------------


def is_plan(text: str) -> bool:
    """Whether this holds a ranking of plans as Metis prints it."""
    return bool(_RANK.search(text))


def plans(text: str, problem: Problem, table: cost.CostTable) -> Iterator[Plan]:
    """Every ranked plan without tensor parallelism.

    Rows are shared by Asteroid's Algorithm 1, as for all others.

    Parameters
    ----------
    text
        What Metis printed.
    problem
        That it was given.
    table
        Of this problem.

    Raises
    ------
    PlanError
        The ranking is of another model or home.
    """
    types = types_of(problem)
    n_layers = len(problem.layers)
    batch = problem.workload.batch
    for match in _RANK.finditer(text):
        sequence, sizes, strategies, n_micro_batches, partition = match.groups()
        order = [
            name
            for kind in re.findall(r"DeviceType\.(\w+)", sequence)
            for name in _members(types, kind)
        ]
        groups, bounds = _numbers(sizes), _numbers(partition)
        n_each = int(n_micro_batches)
        if bounds[-1] != n_layers and bounds == sorted(set(bounds)):
            raise PlanError(f"the plan covers {bounds[-1]} layers; {problem.model} has {n_layers}.")
        if sum(groups) != len(order):
            raise PlanError(
                f"the plan takes {sum(groups)} devices; of its types this home has {len(order)}."
            )
        one_way = all(tensor == "1" for _, tensor in _PAIR.findall(strategies))
        if not one_way or bounds != sorted(set(bounds)) or not n_each or batch % n_each:
            # tensor parallel, an empty stage, or micro-batches that do not divide our batch
            continue
        ends = [sum(groups[:p]) for p in range(len(groups) + 1)]
        members = [tuple(order[a:b]) for a, b in pairwise(ends)]
        if len(members) == len(bounds) - 1:
            plan = build(table, "metis", bounds, members, batch // n_each)
            if plan is not None:
                yield plan


def _members(types: Mapping[str, tuple[str, ...]], kind: str) -> tuple[str, ...]:
    if kind not in types:
        raise PlanError(
            f"the plan names {kind}; this home has {', '.join(types)} as Metis' names go."
        )
    return types[kind]


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]
