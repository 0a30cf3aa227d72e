"""A home that does not exist: one device more or less, another capacity of a medium. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from difflib import get_close_matches

from potluck.errors import UserError
from potluck.records import HOME, Medium, Network, Path, Problem

# --- networks -------------------------------------------------------------------------------------


def rated(network: Network, medium: str, capacity_bytes_per_s: float) -> Network:
    """The network with another capacity of one medium.

    Parameters
    ----------
    network
        Of a home.
    medium
        Its name.
    capacity_bytes_per_s
        The new one.
    """
    names = [item.name for item in network.media]
    known(medium, names, "medium")
    media = tuple(
        replace(item, capacity_bytes_per_s=capacity_bytes_per_s) if item.name == medium else item
        for item in network.media
    )
    return replace(network, media=media)


def parted(network: Network, device: str) -> Network:
    """The network without `device`, and without the media that only it used."""
    paths = {pair: path for pair, path in network.paths.items() if device not in pair}
    used = {name for path in paths.values() for name, _ in path.media}
    return Network(media=tuple(item for item in network.media if item.name in used), paths=paths)


def joined(network: Network, device: str, like: str) -> Network:
    """The network with `device` connected as `like` is: in the same air, behind a port like its
    own.

    What only `like` uses (its port's ways up and down, a link measured between two devices) is
    doubled for the newcomer. What `like` shares with others (the air of a WiFi, a line between
    sites) it shares with the newcomer too.

    Parameters
    ----------
    network
        Of a home.
    device
        The newcomer's name.
    like
        Whom it is connected like.
    """
    joining = _Joining(network, device, like)
    paths = dict(network.paths)
    for (source, target), path in network.paths.items():
        if source == like:
            paths[device, target] = joining.along(path, device, joining.at(target))
        elif target == like:
            paths[source, device] = joining.along(path, joining.at(source), device)
    paths[like, device], paths[device, like] = joining.between()
    if joining.host == like:  # the notebook runs on it
        paths[HOME, device], paths[device, HOME] = paths[like, device], paths[device, like]
    extra = (Medium(name=name, capacity_bytes_per_s=rate) for name, rate in joining.extra.items())
    return Network(media=(*network.media, *extra), paths=paths)


class _Joining:
    """Which media are `like`'s alone (`own`) or a link of just two ends (`twin`).

    `extra`: the newcomer's media.
    """

    def __init__(self, network: Network, device: str, like: str) -> None:
        self.network = network
        self.device = device
        self.like = like
        self.capacity = {item.name: item.capacity_bytes_per_s for item in network.media}
        self.extra: dict[str, float] = {}
        self.host = next(
            (b for (a, b), path in network.paths.items() if a == HOME and not path.media), HOME
        )
        crossed: dict[str, set[tuple[str, str]]] = {}
        for (a, b), path in network.paths.items():
            for name, _ in path.media:
                crossed.setdefault(name, set()).add((self.at(a), self.at(b)))
        self.own = {name for name, pairs in crossed.items() if self._is_own(name, pairs)}
        single = {path.media[0][0] for path in network.paths.values() if len(path.media) == 1}
        self.twin = {name for name, pairs in crossed.items() if len(pairs) == 1} & single

    def at(self, end: str) -> str:
        """The device that stands for an end of a path: for the notebook the one that it runs on."""
        return self.host if end == HOME else end

    def _is_own(self, medium: str, pairs: set[tuple[str, str]]) -> bool:
        one_way = all(a == self.like for a, _ in pairs) or all(b == self.like for _, b in pairs)
        # of two devices, the name tells
        return one_way and (len(pairs) > 1 or medium.startswith(f"{self.like} "))

    def along(self, path: Path, source: str, target: str) -> Path:
        """A path of `like` with the newcomer in its place."""
        return replace(
            path, media=tuple((self._doubled(name, source, target), n) for name, n in path.media)
        )

    def between(self) -> tuple[Path, Path]:
        """From `like` to the newcomer and back: as to its nearest neighbour, with the newcomer's
        end for that one's.
        """
        near = [
            b
            for a, b in self.network.paths
            if a == self.like and b != HOME and (b, a) in self.network.paths
        ]
        if not near:
            raise UserError(
                f"{self.like} is alone: nothing says how it would reach {self.device}.",
                next_step="A newcomer is connected as one that has neighbours: name such a device, "
                "or add it first.",
            )
        reach = self.network.path
        peer = min(
            near, key=lambda b: (reach(self.like, b).latency_s, len(reach(self.like, b).media))
        )
        outward, back = reach(self.like, peer), reach(peer, self.like)
        if outward.media and outward.media[0][0] in self.twin:
            return self.along(outward, self.like, self.device), self.along(
                back, self.device, self.like
            )
        both_ways = {name for name, _ in back.media} - self.own
        air = tuple(item for item in outward.media if item[0] in both_ways)
        up = tuple(item for item in outward.media if item[0] in self.own)
        down = tuple(item for item in back.media if item[0] in self.own)
        new_up = tuple((self._doubled(name), n) for name, n in up)
        new_down = tuple((self._doubled(name), n) for name, n in down)
        return replace(outward, media=up + air + new_down), replace(back, media=new_up + air + down)

    def _doubled(self, medium: str, source: str = "", target: str = "") -> str:
        if medium in self.twin:
            name = f"{source} to {target}"
        elif medium in self.own:
            name = f"{self.device} {medium.removeprefix(self.like).strip()}"
        else:
            return medium
        self.extra[name] = self.capacity[medium]
        return name


# --- problems -------------------------------------------------------------------------------------


def with_medium(problem: Problem, medium: str, capacity_bytes_per_s: float) -> Problem:
    """The problem with another capacity of one medium.

    Parameters
    ----------
    problem
        Of a home.
    medium
        Its name.
    capacity_bytes_per_s
        The new one.
    """
    return replace(problem, network=rated(problem.network, medium, capacity_bytes_per_s), home="")


def only(problem: Problem, names: Collection[str]) -> Problem:
    """The problem with no devices but these."""
    network = problem.network
    for device in problem.devices:
        network = network if device.name in names else parted(network, device.name)
    qoe = problem.qoe
    return replace(
        problem,
        devices=tuple(device for device in problem.devices if device.name in names),
        network=network,
        costs={name: costs for name, costs in problem.costs.items() if name in names},
        qoe=replace(
            qoe,
            memory_bytes={name: limit for name, limit in qoe.memory_bytes.items() if name in names},
            device_energy_j={
                name: limit for name, limit in qoe.device_energy_j.items() if name in names
            },
        ),
    )


def with_twin(problem: Problem, of: str, name: str = "") -> Problem:
    """The problem with a second device like `of`, connected as it is.

    Parameters
    ----------
    problem
        Of a home.
    of
        Whom the newcomer equals.
    name
        What it is called; default: made from `of`.
    """
    device = problem.device(of)
    name = free_name(name or f"another {of}", [item.name for item in problem.devices])
    return replace(
        problem,
        devices=(*problem.devices, replace(device, name=name)),
        network=joined(problem.network, name, of),
        costs={**problem.costs, name: problem.costs[of]},
        home="",
    )


def free_name(name: str, taken: Sequence[str]) -> str:
    """`name`, or with the next free number where it is taken."""
    return next(
        n for n in (name, *(f"{name}-{i}" for i in range(2, len(taken) + 3))) if n not in taken
    )


def known(name: str, names: Sequence[str], what: str) -> None:
    """Refuse a name unless `name` is one of `names`.

    Parameters
    ----------
    name
        What was asked for.
    names
        What there is.
    what
        What they are names of, for the error.

    Raises
    ------
    UserError
        Has the names that are near it.
    """
    if name not in names:
        near = get_close_matches(name, names, n=3)
        hint = (
            f"Did you mean {' or '.join(near)}?"
            if near
            else f"There are {', '.join(names) or 'none'}."
        )
        raise UserError(
            f"there is no {what} {name!r} in this home.",
            next_step=hint,
            name=name,
            near=tuple(near),
        )
