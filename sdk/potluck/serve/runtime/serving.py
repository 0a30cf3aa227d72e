"""All services of a home: measured on its devices, placed, and placed anew when a device goes,
comes back or wants to leave, and when other services are asked for than before.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from potluck.errors import DeviceGone, Infeasible, OutOfMemory, PlanError, PotluckError, UserError
from potluck.records import Plan
from potluck.serve import resident_objects
from potluck.serve.runtime.device_placement import (
    ServiceDemand,
    ServicePlace,
    check_placed,
    place_all,
    place_divided,
    record,
)
from potluck.serve.runtime.dispatch import Dispatch
from potluck.serve.runtime.divided_service import DividedService, divide
from potluck.serve.runtime.entrances import RENEW_S, Entrances
from potluck.serve.runtime.loaded_model import Loaded, plan_on, with_batch
from potluck.serve.runtime.measure import MeasuredService, measure
from potluck.serve.scheduling import load_watch
from potluck.serve.scheduling.load_watch import LoadWatch, Places, satisfied_per_s, should_move
from potluck.serve.scheduling.records import BatchTimes
from potluck.serve.scheduling.replica_pools import Pool
from potluck.sessions.link import SessionLink
from potluck.sessions.members import Members
from potluck_wire.request_handler import Way

if TYPE_CHECKING:
    from potluck.profile.profiles import Profile

LOOK_S = 0.5  # between looks whether devices went, came back or want to leave
TRIES = 3  # of one placement, while devices go meanwhile
FULL_S = 10.0  # that a device is not tried again which had no room: others may have left it some
SAY = Callable[[float, str], None]


class Serving:
    """The services of one home.

    Parameters
    ----------
    link, members
        The home's connection and its devices.
    profiled
        Gives the profile of a model for inference, made where it is not known: by which a model is
        split over several devices.
    is_played
        Whether its devices are emulated, and last as long as that profile says.
    """

    def __init__(
        self,
        link: SessionLink,
        members: Members,
        profiled: Callable[[Any], "Profile"],
        *,
        is_played: bool = False,
    ) -> None:
        self._link, self._members = link, members
        self.entrances = Entrances(link, members)
        self.dispatch = Dispatch(self.entrances.compute, is_placed_anew=True, later=link.later)
        self._profiled, self._is_played = profiled, is_played
        self._divisions: dict[str, DividedService] = {}
        # by model, limit and the keys of the devices that there were
        self._known_divisions: dict[tuple[str, float, frozenset[str]], DividedService] = {}
        self._wanted: dict[str, ServiceDemand] = {}
        self._measured: dict[str, dict[str, MeasuredService]] = {}
        self._cache: dict[tuple[str, str], tuple[float, MeasuredService]] = {}  # by limit
        self._full: dict[tuple[str, str], float] = {}  # no room for each other, until then
        self._placing = threading.RLock()  # one placement at a time
        self._devices: tuple[str, ...] = ()
        self._load_watch = LoadWatch(load_watch.WINDOW_S)
        self._demand: Mapping[str, float] = {}  # that comes, as far as it was watched
        self._where: Places = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="potluck placing", daemon=True)
        self._thread.start()
        threading.Thread(target=self._renew, name="potluck grants", daemon=True).start()

    @property
    def served(self) -> Mapping[str, ServiceDemand]:
        """The services that can be asked now, by name: each was placed once, and not closed."""
        placed = self.dispatch.records
        return {name: each for name, each in tuple(self._wanted.items()) if name in placed}

    def is_served(self, wanted: ServiceDemand) -> bool:
        """Whether this one can be asked now; another one may have its name by now.

        Parameters
        ----------
        wanted
            The service.
        """
        return self.served.get(wanted.name) is wanted

    def devices(self, name: str) -> Mapping[str, int]:
        """The devices that have a service now, each with the most rows that it takes at once."""
        found: dict[str, int] = {}
        for held in self.dispatch.pools():
            if held.pool.allocation.service == name:
                for each in held.loaded:
                    found.update(dict.fromkeys(each.devices, held.pool.allocation.batch))
        return found

    def serve(self, wanted: ServiceDemand, say: SAY = lambda done_frac, text: None) -> None:
        """Measure a model where it was not measured before, and place it beside the others.

        Parameters
        ----------
        wanted
            The model, whose values are those of now, its name, limit, priority and queue.
        say
            Told how far it is.

        Raises
        ------
        UserError
            There is a service of that name.
        OutOfMemory
            No device has room for it.
        Infeasible
            No device can hold the limit; says the best possible. Nothing was placed.
        """
        with self._placing:
            name = wanted.name
            if name in self._wanted:
                raise UserError(
                    f"a service is called {name!r} already.",
                    next_step="Close it first, or choose another name.",
                )
            measured = self._measure(wanted, say)
            if not measured:
                say(0.8, "dividing it over several devices")
                self._divisions[name] = self._divide(wanted)
            self._full = {pair: until_s for pair, until_s in self._full.items() if pair[0] != name}
            self._wanted[name], self._measured[name] = wanted, measured
            try:
                say(0.9, "placing it")
                places = self._place(needed=name)
                check_placed(wanted, places)
                resident_objects.leave_out(self)
            except BaseException:
                self.close_service(wanted)
                raise

    def close_service(self, wanted: ServiceDemand) -> None:
        """End one service, unless it has ended; the others may get its devices.

        Parameters
        ----------
        wanted
            The service.
        """
        name = wanted.name
        if self._wanted.get(name) is not wanted:
            return
        self.dispatch.remove(name)  # whoever waits hears it at once
        with self._placing:
            if self._wanted.get(name) is not wanted:
                return
            for known in (self._wanted, self._measured, self._divisions):
                known.pop(name, None)
            self._full.clear()
            self.entrances.revoke(name)
            self.dispatch.remove(name)  # where it was placed meanwhile
            if not self._wanted:
                resident_objects.take_back(self)
            if not self._closed.is_set():
                with suppress(PotluckError):
                    self._place()

    def close(self) -> None:
        """End all of them."""
        self._closed.set()
        self.dispatch.close()
        resident_objects.take_back(self)

    # --- measuring --------------------------------------------------------------------------------

    def _measure(self, wanted: ServiceDemand, say: SAY) -> dict[str, MeasuredService]:
        found: dict[str, MeasuredService] = {}
        failure: PotluckError | None = None
        devices = self._members.need()
        for number, device in enumerate(devices):
            say(0.8 * number / len(devices), f"measuring on {device}")
            try:
                found[device] = self._measured_on(wanted, device)
            except (OutOfMemory, PlanError, DeviceGone) as error:
                failure = error
        if not found:
            assert failure is not None  # `need` gives one device or more
            if len(devices) == 1 or not isinstance(failure, OutOfMemory):
                raise failure
        return found

    def _divide(self, wanted: ServiceDemand) -> DividedService:
        """A place for what no device holds alone, as it was where the same devices are back."""
        model = wanted.model
        staying = self._members.staying
        keys = frozenset(self._members[device].key for device in staying)
        about = model.signature, wanted.slo.tolerance_s, keys
        if about not in self._known_divisions:
            profile = self._profiled(model)
            for device in [each.name for each in profile.devices]:
                if device not in staying:
                    profile = profile.without_device(device)
            self._known_divisions[about] = divide(
                model, profile, wanted.slo.tolerance_s, lambda plan: self._load_plan(model, plan)
            )
        return self._known_divisions[about]

    def _measured_on(self, wanted: ServiceDemand, device: str) -> MeasuredService:
        model, limit_s = wanted.model, wanted.slo.tolerance_s
        key = (model.signature, self._members[device].key)
        known_s, known = self._cache.get(key, (0.0, None))
        if known is None or not known.holds_for(limit_s, known_s):
            known = measure(
                lambda batch: self._loaded(model, device, batch), model, limit_s, time.perf_counter
            )
            self._cache[key] = limit_s, known
        return known

    def _loaded(self, model: Any, device: str, batch: int) -> Loaded:
        return self._load_plan(model, plan_on(model, device, batch))

    def _load_plan(self, model: Any, plan: Plan) -> Loaded:
        profile = self._profiled(model) if self._is_played else None
        return Loaded(self._link, self._members, model, plan, profile)

    # --- placing ----------------------------------------------------------------------------------

    def _place(self, *, needed: str = "") -> Mapping[tuple[str, str], ServicePlace]:
        """Have the devices that stay hold what the placement says; returns it.

        Parameters
        ----------
        needed
            A service that raises where no device can hold it, or where another one would lose its
            place for it; else a service that no device can hold goes without.
        """
        with self._placing:
            for _ in range(TRIES * (1 + len(self._members))):
                self._devices = self._members.staying
                places = self._places(needed)
                if (pools := self._load(places)) is not None:
                    self._take(places)
                    self.dispatch.place(pools)
                    self._grant(pools)
                    self._where = _counted(places)
                    self._load_watch.begin()
                    return places
            raise Infeasible(
                "the devices of this home do not stay long enough for a service to be loaded.",
                next_step="Look at home.devices, and serve again.",
            )

    def _grant(self, pools: Sequence[tuple[Pool, Sequence[Loaded]]]) -> None:
        """Devices that have a service may ask each other for it from now on."""
        placed: dict[str, list[tuple[Loaded, BatchTimes]]] = {name: [] for name in self._wanted}
        for pool, loaded in pools:
            alone = pool.allocation.variant.times[1]
            placed[pool.allocation.service] += [(each, alone) for each in loaded]
        for name, where in placed.items():
            self.entrances.grant(name, self._wanted[name].slo.tolerance_s, where)

    def _places(self, needed: str = "") -> dict[tuple[str, str], ServicePlace]:
        memory = {name: self._memory_bytes(name) for name in self._devices}
        divided = self._divided(memory, needed)
        wanted = [each for name, each in self._wanted.items() if name not in self._divisions]
        now_s = time.monotonic()
        self._full = {pair: until_s for pair, until_s in self._full.items() if until_s > now_s}
        while True:
            try:
                alone = place_all(wanted, self._measured, memory, self._full, self._demand)
                return divided | alone
            except Infeasible as error:
                name = error.facts["service"]
                if needed and (name == needed or self.devices(str(name))):
                    raise
                wanted = [each for each in wanted if each.name != name]  # it goes without

    def _divided(self, memory: dict[str, int], needed: str) -> dict[tuple[str, str], ServicePlace]:
        """The services over several devices; what they need there is taken off `memory`."""
        found: dict[tuple[str, str], ServicePlace] = {}
        for name, each in self._divisions.items():
            if not {*each.plan.devices} <= {*memory}:
                continue
            try:
                found |= place_divided(self._wanted[name], each.where, each.measured)
            except Infeasible:
                if name == needed:
                    raise
                continue
            for device, nbytes in each.memory_bytes.items():
                memory[device] = max(1, memory[device] - nbytes)
        return found

    def _memory_bytes(self, device: str) -> int:
        capability = self._members[device].capability
        return int(capability.get("available_bytes", capability.get("memory_bytes")) or 2**62)

    def _load(
        self, places: Mapping[tuple[str, str], ServicePlace]
    ) -> list[tuple[Pool, Sequence[Loaded]]] | None:
        """What is placed and not loaded yet is loaded; None: something changed meanwhile, and
        nothing more is loaded than before.
        """
        pools: list[tuple[Pool, Sequence[Loaded]]] = []
        new: list[Loaded] = []
        for (service, _), place in places.items():
            loaded = []
            for where in place.n_replicas:
                try:
                    loaded.append(self._there(service, where, place.allocation.batch, new))
                except PotluckError as error:
                    for each in new:
                        each.close()
                    if isinstance(error, OutOfMemory):
                        self._had_no_room(service, where)
                    return None
            n_replicas = sum(place.n_replicas.values())
            way = Way.ACROSS if service in self._divisions else Way.ALONE
            pools.append((Pool(place.allocation, n_replicas, way), loaded))
        return pools

    def _had_no_room(self, service: str, where: str) -> None:
        self._full[service, where] = time.monotonic() + FULL_S
        if self._divisions.pop(service, None) is not None:
            self._known_divisions.clear()  # others have taken room since

    def _there(self, service: str, where: str, batch: int, new: list[Loaded]) -> Loaded:
        """What is loaded there for such batches; it is among `new` if it was not before."""
        divided = self._divisions.get(service)
        devices = (where,) if divided is None else divided.plan.devices
        known = self.dispatch.loaded(service, devices)
        if known is not None and known.batch >= batch:
            return known
        model = self._wanted[service].model
        try:
            if divided is not None:
                new.append(self._load_plan(model, with_batch(divided.plan, batch)))
            else:
                new.append(self._loaded(model, where, batch))
        except OutOfMemory:
            if known is None:
                raise
            return known  # larger batches have no room beside it: it goes on with smaller ones
        return new[-1]

    def _take(self, places: Mapping[tuple[str, str], ServicePlace]) -> None:
        """Let the entrance know what is served, before its pools come."""
        for name, wanted in self._wanted.items():
            kinds = {
                where: kind
                for (service, kind), place in places.items()
                if service == name
                for where in place.n_replicas
            }
            if kinds:
                divided = self._divisions.get(name)
                known = (
                    self._measured[name] if divided is None else {divided.where: divided.measured}
                )
                measured = {where: known[where] for where in kinds}
                self.dispatch.add(record(wanted, measured, kinds, 2))

    # --- what happens to devices ------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._closed.is_set():
            self.dispatch.lost.wait(LOOK_S)
            went = self.dispatch.lost.is_set()
            self.dispatch.lost.clear()
            if self._closed.is_set():
                return
            with suppress(PotluckError):  # the next look tries again
                self._look(went)
            self.dispatch.placed_anew()

    def _renew(self) -> None:
        while not self._closed.wait(RENEW_S):
            self.entrances.renew()

    def _look(self, went: bool) -> None:
        if not self._wanted:
            return
        placed = {service for service, _ in self._where}
        is_whole = placed >= {*self._wanted} or not self._members.staying
        if not went and is_whole and self._members.staying == self._devices:
            self._follow()
            return
        with self._placing:
            if went:  # before anything that takes long
                with suppress(PotluckError):
                    self._place()
                self.dispatch.placed_anew()
            self._measure_new()
            self._divide_anew()
            self._place()

    def _follow(self) -> None:
        """Move models where other services are asked for than before, and clearly more can be
        satisfied; the old ones answer until the new ones are there.
        """
        counts = {name: self.dispatch.stats(name).n_asked for name in self.served}
        demand = self._load_watch.look(counts, time.monotonic())
        if demand is None or satisfied_per_s(self._where, demand) >= sum(demand.values()):
            return
        with self._placing:
            before, self._demand = self._demand, demand
            if should_move(self._where, _counted(self._places()), demand):
                self._place()
            else:
                self._demand = before
                self._load_watch.begin()  # once in a window is often enough

    def _divide_anew(self) -> None:
        """What was divided over devices of which one went, or what one device can hold now."""
        for name, wanted in self._wanted.items():
            known = self._divisions.get(name)
            stays = known is not None and set(known.plan.devices) <= {*self._members.staying}
            alone = any(device in self._measured[name] for device in self._members.staying)
            if alone or not stays:
                self._divisions.pop(name, None)
            if not alone and not stays:
                with suppress(PotluckError):
                    self._divisions[name] = self._divide(wanted)

    def _measure_new(self) -> None:
        """On devices that were not there before."""
        for name, measured in self._measured.items():
            for device in self._members.staying:
                if device not in measured and (name, device) not in self._full:
                    with suppress(OutOfMemory, PlanError, DeviceGone):
                        measured[device] = self._measured_on(self._wanted[name], device)


def _counted(places: Mapping[tuple[str, str], ServicePlace]) -> Places:
    return {
        key: (place.allocation, sum(place.n_replicas.values())) for key, place in places.items()
    }
