"""Why an operator of torch's is none for devices: a reason of a fixed list, and what would do.

The reasons come from torch's own schemas and tags, so that new operators have one, too.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from potluck.errors import ModelError


@dataclass(frozen=True, slots=True)
class OperatorRefusal:
    """`text` goes on after "the operator x"; `next_step`: what would do."""

    text: str
    next_step: str


RANDOM = OperatorRefusal(
    "draws random numbers, which a split would change",
    "Draw them outside the model and pass them as an input. Dropout is known, and uniform, normal, "
    "exponential and whole numbers: torch.rand, randn, bernoulli, randint, multinomial.",
)
DATA = OperatorRefusal(
    "makes a size, or a number, of the data",
    "Keep the shape, with torch.where or a mask that is multiplied; or compute it outside. "
    '(Experts of transformers: experts_implementation="batched_mm".)',
)
IN_PLACE = OperatorRefusal(
    "changes memory that others may see", "Use the form that returns a new tensor."
)
MEMORY = OperatorRefusal(
    "reads memory as it lies", "Use view, reshape, unfold or indexing, which say what is meant."
)
BACKWARD = OperatorRefusal(
    "is a backward pass of its own", "Devices derive what they compute; write the forward pass."
)
VALUES = OperatorRefusal(
    "fails for some values (as for a matrix that has no inverse), which devices do not tell",
    "Compute it outside the model, and pass it as an input.",
)
ACROSS = OperatorRefusal(
    "works across the rows of a batch, which are divided among devices",
    "Compute it within each row; of embedding_bag, give indices [rows, n] and no offsets.",
)
SIZES = OperatorRefusal("is about sizes, which are known before a device computes", "Use x.shape.")
UNKNOWN = OperatorRefusal(
    "is not on the devices' list, and torch does not write it out in operators that are",
    "Write this part with other operators, or leave it outside the model.",
)
REASONS = (RANDOM, DATA, IN_PLACE, MEMORY, BACKWARD, VALUES, ACROSS, SIZES, UNKNOWN)

_AS_IT_LIES = frozenset({"as_strided", "empty_strided", "resize_", "set_", "from_file"})
_OF_DATA = frozenset(
    {"item", "histc", "bincount", "_local_scalar_dense", "nonzero", "masked_select", "_unique2"}
)
_ACROSS = frozenset({"_embedding_bag", "_pdist_forward", "pdist", "embedding_bag"})
_OF_VALUES = frozenset(
    {"linalg_inv_ex", "linalg_cholesky_ex", "_linalg_solve_ex", "_linalg_eigh", "_linalg_svd"}
    | {"linalg_lu_factor_ex", "linalg_eig", "linalg_lstsq", "linalg_ldl_factor_ex"}
    | {"_linalg_check_errors", "cholesky_inverse"}
)


def reason(target: Any) -> OperatorRefusal:
    """Why an operator (torch's own, an OpOverload) is none for devices."""
    packet = str(target).split(".")[1]
    tags, schema = target.tags, target._schema
    if packet.startswith("sym_"):
        return SIZES
    if "backward" in packet:
        return BACKWARD
    if packet in _AS_IT_LIES:
        return MEMORY
    if torch.Tag.nondeterministic_seeded in tags:
        return RANDOM
    if any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments):
        return IN_PLACE
    if packet in _OF_DATA or {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output} & {
        *tags
    }:
        return DATA
    if packet in _ACROSS:
        return ACROSS
    return VALUES if packet in _OF_VALUES else UNKNOWN


def refusal(target: Any, where: str) -> ModelError:
    """The error for an operator, which says where it is and what would do."""
    why = reason(target)
    return ModelError(
        f"the operator {target} {why.text}{where}.", next_step=why.next_step, operator=str(target)
    )


def all_of(errors: Iterable[ModelError]) -> tuple[ModelError, ...]:
    """Every refusal that these errors hold, each once, in their order."""
    found: dict[str, ModelError] = {}
    for error in errors:
        inside: Any = error.facts.get("refusals")
        for one in inside or (error,):
            found.setdefault(str(one), one)
    return tuple(found.values())


def together(errors: Sequence[ModelError]) -> ModelError:
    """The first of several refusals that has a reason of its own, which knows the others (the fact
    `refusals`) and counts them.
    """
    refusals = all_of(errors)
    first = next((error for error in refusals if UNKNOWN.text not in str(error)), refusals[0])
    if len(refusals) == 1:
        return first
    text = str(first).removesuffix(first.next_step).rstrip()
    more = f"(Model.check lists all {len(refusals)} refusals.)"
    facts: dict[str, Any] = {**first.facts, "refusals": refusals}
    return ModelError(text, next_step=f"{first.next_step} {more}".strip(), **facts)


def each(ways: Sequence[Callable[[], Any]]) -> list[Any]:
    """What each way to trace a model gives. Raises the refusals of all of them together."""
    found, errors = [], []
    for way in ways:
        try:
            found.append(way())
        except ModelError as error:
            errors.append(error)
    if errors:
        raise together(errors) from errors[0].__cause__
    return found
