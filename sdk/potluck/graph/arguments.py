"""What the inputs and targets of a model are called, and which tensor of a batch is which of them.
Pure: no torch.

A mapping tells by its keys which tensor is which, whatever their order: inputs are called as
`forward` calls them, targets as the loss does, or as their example did. What is missing or left
over is refused by its name.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import Parameter, signature
from typing import Any

from potluck.errors import ModelError, UserError

# of a model that has one
USUAL_TARGETS = ("labels", "label", "label_ids", "target", "targets", "y")
BY_PLACE = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
Leaf = tuple[str, Any]  # the key of a tensor, empty where it came without one; and the tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """The name of each input, empty where it has none (`*args`), and all names that each target may
    have.

    `by_name`: the example of the inputs was a mapping, which has no order. `placeless`: those of
    its inputs that `forward` takes by name alone. `n_reductions`: so many of the last targets are
    what the loss of a model from a file makes of a whole batch.
    """

    inputs: tuple[str, ...]
    targets: tuple[tuple[str, ...], ...] = ()
    by_name: bool = False
    placeless: tuple[str, ...] = ()
    n_reductions: int = 0

    @property
    def requested(self) -> "Arguments":
        """Those of a request, which has no targets."""
        return replace(self, targets=(), n_reductions=0)

    def scored(self, score: Callable[..., Any]) -> "Arguments":
        """With the targets that `score(outputs, *targets)` needs, where they have names."""
        needed = [
            p for p in parameters(score)[1:] if p.kind in BY_PLACE and p.default is Parameter.empty
        ]
        own = [*self.targets, *[()] * len(needed)]
        named = tuple((p.name, *names) for p, names in zip(needed, own, strict=False))
        return replace(self, targets=with_usual(named or self.targets), n_reductions=0)

    @property
    def labels(self) -> tuple[str, ...]:
        """One name for each input, then target."""
        return (
            *self.inputs,
            *(names[0] if names else f"target_{i}" for i, names in enumerate(self.targets)),
        )

    @property
    def names(self) -> frozenset[str]:
        """All names that a batch may use."""
        return frozenset((*self.inputs, *(name for names in self.targets for name in names))) - {""}

    def in_order(self, leaves: Sequence[Leaf]) -> tuple[Any, ...]:
        """Inputs, then targets, of a batch: as in a call, those without a key first, then those
        with one.

        Without any key, all as they come. Behind those with a key, those without one are targets.

        Raises
        ------
        UserError
            Where a key belongs to none, two belong to one, or one is missing.
        """
        keys = [key for key, _ in leaves]
        n_first = next((i for i, key in enumerate(keys) if key), len(keys))
        unnamed = [name for name in self.inputs[:n_first] if name in self.placeless]
        if unnamed and len(self.placeless) > 1:
            raise UserError(
                f"a batch holds tensors without names, and forward takes {_listed(self.placeless)} "
                "by name alone.",
                next_step=f'Give them as a mapping: {{"{unnamed[0]}": tensor, ...}}.',
            )
        if not any(keys):
            return tuple(tensor for _, tensor in leaves)
        if "" in self.inputs:
            raise UserError(
                f"a batch names {_listed(key for key in keys if key)}, and the inputs of this "
                "model have no names.",
                next_step="Give tuples of tensors, in order; or make the model from an example "
                "that is a mapping.",
            )
        slots = [(name,) for name in self.inputs] + list(self.targets)
        found: dict[int, Leaf] = dict(enumerate(leaves[:n_first]))
        for key, tensor in leaves[n_first:]:
            slot = self._slot(key, slots) if key else self._next_target(found)
            if slot in found and slot < len(slots):
                before = found[slot][0] or self.labels[slot]
                raise UserError(
                    f"a batch holds {before} "
                    f"{'twice' if before == key else f'and {key}, which are the same'}.",
                    next_step=self._expected(),
                )
            found[slot] = key, tensor
        missing = [label for slot, label in enumerate(self.labels) if slot not in found]
        if missing or len(found) > len(slots):
            fault = (
                f"lacks {_listed(missing)}"
                if missing
                else "holds more tensors than the model takes"
            )
            raise UserError(f"a batch {fault}.", next_step=self._expected())
        return tuple(found[slot][1] for slot in range(len(slots)))

    def check_place(self, name: str, place: int) -> None:
        """See that the field of a named tuple, whose tensors are taken by their order, is what
        comes there.

        Parameters
        ----------
        name
            Of the field; one that the model does not know may be anything.
        place
            Of its tensor, among inputs and targets, from 0.

        Raises
        ------
        UserError
            The name belongs elsewhere.
        """
        slots = [(own,) for own in self.inputs] + list(self.targets)
        if name in self.names and (place >= len(slots) or name not in slots[place]):
            raise UserError(
                f"a batch is a named tuple whose field {name} comes as number {place + 1}, and not "
                "all of its fields are the model's, so that their order would count.",
                next_step=f"{self._expected()} Call all fields so, or put them in that order.",
            )

    def _slot(self, key: str, slots: Sequence[tuple[str, ...]]) -> int:
        slot = next((i for i, names in enumerate(slots) if key in names), None)
        if slot is None:
            raise UserError(
                f"a batch holds {key}, which is none of the model's.",
                next_step=f"{self._expected()} Call it so, leave it out, or give tuples in "
                "that order.",
            )
        return slot

    def _next_target(self, found: Mapping[int, Leaf]) -> int:
        """The place of a tensor without a key behind those that have one."""
        last = len(self.inputs) + len(self.targets)
        return next((slot for slot in range(len(self.inputs), last) if slot not in found), last)

    @property
    def about_reductions(self) -> str:
        """Where those of a model from a file come from; empty where it has none."""
        if not self.n_reductions:
            return ""
        return (
            f"It comes from a file: what its loss makes of a whole batch "
            f"({_listed(self.labels[-self.n_reductions :])}) comes behind the targets, by "
            "potluck.graph.model_file.with_reductions(model, batch), of the model that was saved. "
            "Or make it of its module: Model.from_torch."
        )

    def _expected(self) -> str:
        targets = _listed(" or ".join(names) for names in self.targets)
        named = f"Inputs are {_listed(self.inputs)}{f'; targets are {targets}' if targets else ''}."
        return f"{named} {self.about_reductions}".rstrip()


def parameters(function: Callable[..., Any]) -> tuple[Parameter, ...]:
    """What a function or a module is called with; nothing where it does not tell."""
    try:
        return tuple(signature(getattr(function, "forward", function)).parameters.values())
    except (TypeError, ValueError):
        return ()


def placeless(function: Callable[..., Any], names: Iterable[str]) -> tuple[str, ...]:
    """Those of the names that a function, or a module, takes by name alone: they have no order."""
    own = places(function)
    return tuple(name for name in names if name and name not in own)


def places(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names of what it may be called with by place."""
    return tuple(p.name for p in parameters(function) if p.kind in BY_PLACE)


def ordered(example: Mapping[str, Any], forward: Callable[..., Any]) -> tuple[str, ...]:
    """The keys of an example, in the order in which `forward` has them.

    Raises
    ------
    ModelError
        A key is missing, or `forward` does not have it.
    """
    known = parameters(forward)
    names = [
        p.name for p in known if p.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    ]
    takes_more = any(p.kind is Parameter.VAR_KEYWORD for p in known) and all(
        isinstance(key, str) for key in example
    )
    strangers = sorted(str(key) for key in example if key not in names)
    by_place = [p.name for p in known if p.kind is Parameter.POSITIONAL_ONLY]
    first = by_place[
        : max((i + 1 for i, name in enumerate(by_place) if name in example), default=0)
    ]
    required = [
        p.name
        for p in known
        if p.name in first or (p.name in names and p.default is Parameter.empty)
    ]
    needed = [name for name in required if name not in example]
    if needed or (strangers and not takes_more):
        fault = f"lacks {_listed(needed)}" if needed else f"holds {_listed(strangers)}"
        raise ModelError(
            f"the example {fault}; forward takes {_listed(names) or 'nothing by name'}.",
            next_step="Give it as forward is called, by name; where forward takes a whole mapping, "
            "wrap the module in "
            "one that takes tensors.",
        )
    return (*(name for name in names if name in example), *strangers)


def by_names(value: Any, names: Container[str]) -> Mapping[Any, Any] | None:
    """A mapping, or a named tuple whose fields are all among these names, as a mapping.

    None where it is neither.
    """
    if isinstance(value, Mapping):
        return value
    fields = getattr(value, "_fields", ()) if isinstance(value, tuple) else ()
    return (
        dict(zip(fields, value, strict=True))
        if fields and all(field in names for field in fields)
        else None
    )


def target_names(
    loss: Callable[..., Any], n: int, keys: Sequence[str] = ()
) -> tuple[tuple[str, ...], ...]:
    """All that each of so many targets may be called.

    Parameters
    ----------
    loss
        What takes them.
    n
        How many there are.
    keys
        What their example called them, in their order.
    """
    own, given = [*places(loss)[1:], *[""] * n], [*keys, *[""] * n]
    names = [tuple(dict.fromkeys(filter(None, (given[i], own[i])))) for i in range(n)]
    return with_usual(tuple(names))


def with_usual(targets: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
    """A model's only target may also have one of the usual names."""
    return (tuple(dict.fromkeys((*targets[0], *USUAL_TARGETS))),) if len(targets) == 1 else targets


def dims_in_order(given: Any, arguments: Arguments) -> tuple[int | None, ...]:
    """`sequence_dims` of inputs, then targets.

    Where the example is a mapping, they are told apart by names alone.

    Raises
    ------
    ModelError
        A name is no input and no target.
    """
    names = [(name,) for name in arguments.inputs] + list(arguments.targets)
    if isinstance(given, Mapping):
        strangers = [key for key in given if not any(key in accepted for accepted in names)]
        if strangers:
            raise ModelError(
                f"sequence_dims names {_listed(map(str, strangers))}, which is no input or target.",
                next_step=f"There are {_listed(' or '.join(accepted) for accepted in names)}.",
            )
        return tuple(
            next((given[name] for name in accepted if name in given), None) for accepted in names
        )
    dims = (*given, *[None] * (len(names) - len(given)))
    if arguments.by_name and len(set(dims[: len(arguments.inputs)])) > 1:
        raise ModelError(
            f"the example is a mapping, which has no order, and sequence_dims differ: {given!r}.",
            next_step=f"Name them: sequence_dims={{{arguments.inputs[0]!r}: 1}}.",
        )
    return dims


def _listed(words: Iterable[str]) -> str:
    return ", ".join(words)
