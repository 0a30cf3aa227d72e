"""Home: the user's handle on all devices; one short method per step of the flow."""

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from potluck import display_hooks
from potluck.coordinator.shared_home import SharedHome
from potluck.discover.addresses import candidates, parse_addresses
from potluck.discover.mdns import Enough, browse
from potluck.display_hooks import Shown
from potluck.errors import EmptyHome, HomeError, UserError
from potluck.handle import Handle, Task, in_turn
from potluck.records import Plan
from potluck.sessions.connections import Keys
from potluck.sessions.curve_link import CurveLink
from potluck.sessions.link import SessionLink
from potluck.sessions.members import Member, Members
from potluck.sessions.readings import Readings

if TYPE_CHECKING:
    from potluck.adapt.adapter import Decision
    from potluck.coordinator.detached_run import DetachedRun
    from potluck.discover.keyring import Keyring
    from potluck.graph import Model
    from potluck.lab.lab import Playground
    from potluck.lab.scenario import Script
    from potluck.offload.accelerate import HelperDevice
    from potluck.profile.home_network import HomeNetwork
    from potluck.profile.power_model import Watts
    from potluck.profile.profiles import Profile
    from potluck.run.run import Run
    from potluck.schedule.policies import Policy
    from potluck.sessions.agent_specs import Spec

T = TypeVar("T")

# 0.1 s on one machine; a phone with a sleeping radio answers the second query, after a second
DISCOVER_S = 3.0
ROWS = (1, 4, 16, 32)  # batch sizes that a profile measures: costs are not linear in between


class Home(SharedHome, Shown):
    """The devices of one home, and this notebook's connection to each.

    Close it, or use it as a context manager.

    Parameters
    ----------
    peers
        Where agents listen: "192.168.1.7", "jetson.local:47600". Those not paired yet wait for
        `pair`.
    state
        Directory of this notebook's keys and known devices; default $POTLUCK_HOME or the
        configuration directory.

    Raises
    ------
    HomeError
        Another home has these keys, or a coordinator that trains.
    """

    def __init__(self, peers: Iterable[str] = (), *, state: str | Path | None = None) -> None:
        from potluck.discover.identification import add_peers
        from potluck.discover.keyring import Keyring, controller_name

        addresses = parse_addresses(peers)
        ring = Keyring(Path(state) if state is not None else None)
        public, secret = ring.identity()
        try:
            ring.claim(self._give_way)
        except HomeError as error:
            from potluck.coordinator import local_coordinator

            raise local_coordinator.claimed(ring.directory, error) from error
        keys = Keys(public=public, secret=secret)
        self._open(keys, CurveLink(keys, name=controller_name()), ring)
        add_peers(self._members, ring, addresses)
        self._begin_to_hear()

    def _open(self, keys: Keys, link: SessionLink, ring: "Keyring | None") -> None:
        self._keys = keys
        self._link = link
        self._ring = ring
        self._lab: Playground | None = None
        self._models: dict[str, Model] = {}
        self._profiles: dict[str, Profile] = {}
        self._network: HomeNetwork | None = None
        self._watts: dict[str, Watts] = {}  # as measured, by the device's key
        self._work: weakref.WeakSet[Handle[Any]] = weakref.WeakSet()
        self._runs: weakref.WeakSet[Run] = weakref.WeakSet()
        self._closed = False
        self._measuring = Lock()
        self._members = Members(self._link)

    # --- making one -------------------------------------------------------------------------------

    @classmethod
    def local(cls, n: int = 2, *, extra: Sequence[str] = ()) -> "Home":
        """A home of `n` agents on this machine, each as fast as it is, paired silently with keys
        made for it.
        """
        from potluck.sessions.agent_specs import local_specs

        return cls._of_lab(local_specs(n), extra=extra)

    @classmethod
    def lab(
        cls,
        devices: "str | Path | Iterable[Spec]" = "demo",
        *,
        time_scale: float = 1.0,
        script: "Script | None" = None,
        links: str = "",
        extra: Sequence[str] = (),
    ) -> "Home":
        """A home of emulated devices on this machine: real agents and sockets, stretched times,
        shaped links.

        One of that name that `potluck lab up` has started is joined.

        Parameters
        ----------
        devices
            "demo", a home of `profiles/homes` by its name or as a TOML file of your own, or specs.
        time_scale
            For a home of the library: everything takes so many times longer than it would there.
        script
            What happens when, see `potluck.lab.scenario`; `home.play` begins another.
        links
            How links are emulated: "namespaces" (Linux, root) or "relay"; by default the better one
            that is possible.
        extra
            More options for the command line of every agent.

        Raises
        ------
        UserError
            Nobody knows the home, a device cannot be emulated, or the script names what is not
            there.
        """
        return cls._of_lab(devices, time_scale=time_scale, script=script, links=links, extra=extra)

    @classmethod
    def _of_lab(cls, devices: "str | Path | Iterable[Spec]", **options: Any) -> "Home":
        from potluck.lab.lab import open_lab

        return cls.over(open_lab(devices, **options))

    @classmethod
    def over(cls, lab: "Playground") -> "Home":
        """A home of the agents of this lab, which ends with it; `potluck.testing` has one in
        memory.
        """
        home = cls.__new__(cls)
        try:
            home._open(lab.keys, lab.link(), None)
            home._lab = lab
            lab.claim(home._give_way)
            for agent in lab.started:
                home._members.add(
                    Member(name=agent.name, key=agent.key, addresses=(agent.address,))
                )
            home._members.join()
            home._members.need(home._members)
        except BaseException:
            if hasattr(home, "_closed"):
                home.close()
            lab.close()
            raise
        return home

    @classmethod
    def discover(
        cls,
        timeout_s: float = DISCOVER_S,
        *,
        state: str | Path | None = None,
        enough: Enough | None = None,
    ) -> "Home":
        """Everybody who announces itself here within `timeout_s` seconds, or until `enough({name:
        addresses})` says so, and every device paired before at its last addresses.

        Parameters
        ----------
        timeout_s
            Seconds to listen.
        state
            As for `Home`.
        enough
            Called with what was found so far; the search ends when it answers yes.

        Raises
        ------
        EmptyHome
            Nobody was found, and nobody is known.
        """
        from potluck.discover.identification import add_strangers

        home = cls(state=state)
        try:
            found = browse(timeout_s, enough=enough)
            for known in home._need_ring().devices():
                home._members.add(
                    Member(name=known.name, key=known.key, addresses=candidates(known, found))
                )
            home._members.join()
            add_strangers(home._members, home._need_ring(), found)
            if not home._members:
                raise EmptyHome(
                    f"nobody was found within {timeout_s:g} s.",
                    next_step="Is `potluck agent` running there? Multicast may be blocked: try "
                    "Home(peers=[ADDRESS]); "
                    "`potluck doctor` looks closer.",
                )
        except BaseException:
            home.close()
            raise
        return home

    # --- who is there -----------------------------------------------------------------------------

    @property
    def devices(self) -> Members:
        """All devices by name, with their status."""
        return self._members

    @property
    def readings(self) -> Readings:
        """The power of the devices, whenever wanted: `for reading in home.readings(rate_hz=10)`,
        `home.readings.call(back)`, `.live()`, `.history`, `.to_csv(path)`.
        """
        return self._members.readings

    @property
    def runs(self) -> "tuple[Run, ...]":
        """The runs that are open, in the order in which they were deployed."""
        return tuple(sorted((r for r in self._runs if r.is_open), key=lambda run: run.number))

    @property
    def can_pair(self) -> bool:
        """Whether devices can be paired: those of a lab are, and are all there is."""
        return self._ring is not None

    def cockpit(self, run: "Run | None" = None, *, plans: Sequence[Plan] = ()) -> Any:
        """This home, its run and the choices, live in a notebook: who is at work, what a step
        does, what it takes, which other plans there are. A click shows what a plan would do, a
        second one has the run go over to it.

        Shown again in another cell or window it is the same cockpit. It needs the notebook extra;
        `potluck watch` shows the same without Jupyter.

        Parameters
        ----------
        run
            Which run; default: the newest that is open.
        plans
            That you have made, such as those of `potluck.plan`; others are made here.

        Raises
        ------
        UserError
            These are no plans, or anywidget is not installed.
        """
        return display_hooks.cockpit(self, run, tuple(plans))

    def __getitem__(self, device: str) -> "HelperDevice":
        """One device of this home by its name: what `potluck.accelerate` takes as its helper."""
        from potluck.offload.accelerate import HelperDevice

        self._members.need([device])
        return HelperDevice(home=self, name=device)

    def pair(self, device: str, code: str) -> Member:
        """Pair with a device: `code` is what `potluck agent pair` shows on it (or its token).

        Parameters
        ----------
        device
            A name in `home.devices`, or an address such as "192.168.1.7".

        Raises
        ------
        PairingError
            Wrong code, closed or expired window.
        """
        return self.pair_all({device: code})[0]

    def pair_all(self, codes: Mapping[str, str]) -> tuple[Member, ...]:
        """Pair with several devices, {name or address: code}, then open the sessions with all of
        them at once.
        """
        paired = [self._pair(device, code) for device, code in codes.items()]
        self._members.join(paired)
        return tuple(self._members[name] for name in paired)

    def _pair(self, device: str, code: str) -> str:
        from potluck.discover.identification import paired

        return paired(self._members, self._need_ring(), device, code)

    def trust(self, device: str, key: str, name: str = "") -> Member:
        """Trust a device whose key you copied yourself (`potluck agent --json` prints it), at this
        name or address.

        The device must trust this notebook too: give `home.key` to its `--trust`.

        Parameters
        ----------
        device
            A name in `home.devices`, or an address such as "192.168.1.7".
        key
            The device's public key: 40 characters of Z85.
        name
            What it is called here; default: made from `device`.

        Raises
        ------
        UserError
            The key is no key.
        """
        from potluck.discover.identification import trusted

        kept = trusted(self._members, self._need_ring, device, key, name)
        self._members.join([kept])
        return self._members[kept]

    def forget(self, device: str) -> None:
        """Trust that device no longer.

        Parameters
        ----------
        device
            A name in `home.devices`.

        Raises
        ------
        FileError
            That cannot be written, as on a full disk: this home has it no more, the next one does.
        """
        ring = self._need_ring()
        if ring.get(device) is not None:
            self._members.remove(device)
        ring.forget(device)

    def _give_way(self) -> bool:
        """Whether another home may have these keys by now: one with nothing under way closes for
        it.
        """
        if not self._closed and self._is_at_work:
            return False
        self.close()
        return True

    @property
    def key(self) -> str:
        """The public key that this notebook is known by."""
        return self._keys.public

    def _need_ring(self) -> "Keyring":
        if self._ring is None:
            raise HomeError(
                "the agents of a local home are paired already.", next_step="Use Home.discover()."
            )
        return self._ring

    # --- the flow ---------------------------------------------------------------------------------

    def profile(
        self,
        model: "Model",
        *,
        train: bool = True,
        rows: Sequence[int] = ROWS,
        repeats: int = 3,
        fresh: bool = False,
        devices: Sequence[str] | None = None,
        network: "HomeNetwork | str | Path | None" = None,
        watts: bool | None = None,
    ) -> "Handle[Profile]":
        """Measure how fast each device runs each layer of `model`, and how the devices are
        connected.

        Parameters
        ----------
        model
            What is measured: layer by layer, forward and (for training) backward.
        train
            Measure training, too. A model without a loss, and a device without torch, are measured
            for inference.
        rows
            Batch sizes to measure.
        repeats
            How often each time is taken; the profile keeps the median.
        fresh
            Measure again what the cache already holds.
        devices
            Only these, and it is not kept as the home's profile. Default: all that are ready.
        network
            How the devices are connected: `home.network` as you corrected it, or a TOML file of it.
            Its media are kept and their rates measured; what contradicts that is said. Default: the
            one beside the keys where that is declared, else all is measured. A lab takes it as it
            is, and by default that which it plays.
        watts
            Whether idle, busy and radio power are measured where a meter measures: 15 s more.
            Default: once for each device; they are kept beside the keys (`watts.json`). Where no
            meter is, watts are assumed.

        Raises
        ------
        UserError
            Rows, repeats, devices, the network or watts are not what they should be, or this is no
            `Model`.
        """
        from potluck.lab import profiling
        from potluck.profile.layer_times_store import LayerTimesStore
        from potluck.profile.left_out import profile_of_the_others
        from potluck.profile.measure import check_measuring, name_of, need_model, profile
        from potluck.profile.network_file import declared, keep_network
        from potluck.profile.power_file import keep_watts, kept_watts
        from potluck.run.hop_times import hop_between

        need_model(model, "profiled")
        check_measuring(rows, repeats, devices, watts)
        known = declared(network, self._folder)
        self._models[name_of(model)] = model
        store = LayerTimesStore() if self._ring is not None else None

        def work(task: Task) -> "Profile":
            emulation = self._lab.emulation if self._lab is not None else None
            if emulation is not None:
                measured = profiling.profile(
                    self._link,
                    self._members,
                    model,
                    task,
                    emulation,
                    train=train,
                    rows=rows,
                    repeats=repeats,
                    devices=devices,
                    document=known,
                )
            else:
                if watts is not False and not self._watts:
                    self._watts.update(kept_watts(self._folder))
                some = partial(
                    profile,
                    self._link,
                    self._members,
                    model,
                    task,
                    train=train,
                    rows=rows,
                    repeats=repeats,
                    store=None if fresh else store,
                    save=store,
                    known=known,
                    watts=True if fresh and watts is None else watts,
                    measured_before=self._watts,
                    hop_between=partial(hop_between, self._link, self._members),
                )
                measured = profile_of_the_others(
                    self._members.need(devices), lambda names: some(devices=names)
                )
                keep_watts(self._watts, self._folder)
            if devices is None:
                self._profiles[model.signature] = measured
                self._network = measured.document
                keep_network(self._network, self._folder, known)
            return measured

        return self._follow(Handle(in_turn(self._measuring, work), f"profiling {name_of(model)}"))

    def learn(self, run: "Run") -> "Profile":
        """What this run showed of layers and links goes into the profile of its model and into
        `home.network`, here and on disk: see `profile.from_runs`.
        """
        from potluck.profile.layer_times_store import LayerTimesStore, keep
        from potluck.profile.network_file import keep_network

        profile = self._profiles[run.signature] = run.learn()
        if profile.document is not None:
            self._network = profile.document
            keep_network(self._network, self._folder)
        if self._ring is not None:
            keep(LayerTimesStore(), profile, self._members)
        return profile

    def measure_network(self) -> "Handle[HomeNetwork]":
        """Measure how the devices are connected, and nothing else: what `profile` does for a real
        home, and in a lab what it would find if nobody told it.
        """
        from potluck.profile.device_bench import Bench
        from potluck.profile.measure_network import measure_network

        capabilities = {name: self._members[name].capability for name in self._members.ready}
        emulation, home_host = self._lab.emulation if self._lab is not None else None, ""
        if emulation is not None:  # each device is a machine of its own, and the notebook on one
            capabilities = {name: {**it, "host": name} for name, it in capabilities.items()}
            home_host = emulation.home.home_at

        def work(task: Task) -> "HomeNetwork":
            bench = Bench(self._link, self._members, task, (len(capabilities) + 1) ** 2)
            return measure_network(
                bench, self._link, task, capabilities, home_host=home_host
            ).document

        return self._follow(Handle(in_turn(self._measuring, work), "measuring links"))

    @property
    def network(self) -> "HomeNetwork":
        """How the devices are connected: as the latest profile measured it, as the lab plays it, as
        the file beside the keys has it, or as they say.
        """
        from potluck.profile.network_file import network_now

        capabilities = {name: self._members[name].capability for name in self._members.ready}
        played = self._lab.network if self._lab is not None else None
        return self._network or network_now(self._folder, played, capabilities)

    def deploy(
        self,
        plan: Plan,
        model: "Model | None" = None,
        *,
        optimizer: Any = None,
        seed: int = 0,
        resume: str | Path | None = None,
        schedule: "str | Policy | None" = None,
        order_transfers: bool | None = None,
        refine_s: float = 0.0,
        profile: "Profile | None" = None,
        protect: bool | int | None = None,
        patience_s: float | None = None,
        recovery: str = "soonest",
    ) -> "Handle[Run]":
        """Load `plan` on its devices, weights and all: memory is checked first, then everything or
        nothing.

        Parameters
        ----------
        plan
            One of `potluck.plan`, an edited one, or one of `potluck.load_plan`.
        model
            Default: the one of that name that was profiled here.
        optimizer
            `potluck.AdamW(lr)` (the default) or another of ours, or one of torch's, as for
            `Run.fit`.
        seed
            Of the random numbers of training, such as those of dropout.
        resume
            A file from `run.save`: goes on where that run was.
        schedule
            In which order the stages act: "1f1b", "fill-drain", "interleaved", "forward-only" (for
            inference); with backwards in two parts "zb-h1", "zb-2p", "zb-compact", "zb-v",
            "zb-interleaved"; or a function from a plan to a `potluck.schedule.ir.Schedule`.
            Default: what the plan says, else 1F1B.
        order_transfers, refine_s
            Whether transfers take turns on shared media, in the order that ends a step soonest (by
            a profile); default: turns, that order as priorities, or neither, as simulated. CP-SAT
            (ortools) may better it for `refine_s`.
        profile
            What the run is predicted by; default: the latest one of this model here.
        protect
            A lost device does not end the run: requests under way are asked again, and what
            training has learned is kept here too: in the background and as often as pays (the
            default; see `run.protection`), or every so many steps, while training waits. With
            False it does.
        patience_s
            How long a run that is protected waits where those that are left cannot go on, until a
            lost device is back, or one that wants to leave stays; 0: not at all. Default: ten
            minutes of a training, half a minute of requests.
        recovery
            How a lost device is recovered from: "soonest" (the default: by what ends the training
            soonest, as simulated), "lightweight" (Asteroid's replay: the same pipeline, of which
            cut points move), or "heavy" (all state is gathered, the plan is made anew, and
            everything is sent again). Where the one wished for cannot go on, the other does.

        Raises
        ------
        UserError
            This is no plan, or its model was not seen here and not given.
        PlanError
            The plan does not fit the model, or names devices that are not there.
        OutOfMemory
            A device needs more memory than it may use; nothing was loaded.
        """
        from potluck.profile.measure import name_of, need_model, need_profile
        from potluck.run.deploy import deploy

        if not isinstance(plan, Plan):
            raise UserError(
                f"one plan is deployed, got {type(plan).__name__}.",
                next_step="home.deploy(plans.best)",
            )
        chosen = model if model is not None else self._models.get(plan.model)
        if chosen is None:
            raise UserError(
                f"the plan is for the model {plan.model!r}, which this home has not seen.",
                next_step="Pass it: home.deploy(plan, model).",
            )
        need_model(chosen, "deployed")
        need_profile(profile)
        self._models[name_of(chosen)] = chosen

        def work(task: Task) -> "Run":
            run = deploy(
                self._link,
                self._members,
                chosen,
                plan,
                task,
                optimizer=optimizer,
                seed=seed,
                resume=resume,
                profile=profile or self._profiles.get(chosen.signature),
                schedule=schedule,
                order_transfers=order_transfers,
                refine_s=refine_s,
                protect=protect,
                patience_s=patience_s,
                recovery=recovery,
            )
            self._runs.add(run)
            run.hand_over, run.open_cockpit = self._hand_over, self.cockpit
            return run

        return self._follow(Handle(work, f"deploying {plan.model}"))

    def _hand_over(
        self, run: "Run", rest: "Callable[[], Iterable[Any]]", **options: Any
    ) -> "Handle[DetachedRun]":
        if self._ring is None:
            raise UserError(
                "the agents of a local home end with it: nobody can go on with this run.",
                next_step="Start agents of their own, `potluck agent start`, and use Home().",
            )
        state = self._ring.directory

        def work(task: Task) -> "DetachedRun":
            from potluck.coordinator.hand_over import hand_over

            return hand_over(self, run, rest, task, state=state, keys=self._keys, **options)

        return self._follow(Handle(work, f"handing over {run.plan.model}"))

    @staticmethod
    def attach(
        job: str = "", *, state: str | Path | None = None, at: str = "", key: str = ""
    ) -> "DetachedRun":
        """A training that `run.detach` handed over, from any notebook that its coordinator knows.

        Parameters
        ----------
        job
            Its name; default: the latest.
        state
            As for `Home`.
        at, key
            Address and key of a coordinator elsewhere, as `potluck coordinate` prints them;
            default: the one of this computer, which is started again where it has ended.

        Raises
        ------
        HomeError
            Nothing was handed over, or the coordinator does not answer.
        """
        from potluck.coordinator.hand_over import attach
        from potluck.discover.keyring import Keyring

        ring = Keyring(Path(state) if state is not None else None)
        public, secret = ring.identity()
        return attach(
            job, state=ring.directory, keys=Keys(public=public, secret=secret), at=at, key=key
        )

    def _follow(self, handle: "Handle[T]") -> "Handle[T]":
        self._work.add(handle)
        return handle

    def adapt(self, run: "Run") -> "Handle[tuple[Decision, ...]]":
        """`run.adapt()`: let a run for inference go over to another plan where that pays.

        Parameters
        ----------
        run
            Of this home.

        Raises
        ------
        PlanError
            The run trains.
        UserError
            There is no profile to adapt by.
        """
        return self._follow(run.adapt())

    def play(self, script: "Script") -> None:
        """Play the events of a scenario in this lab, from now on.

        Parameters
        ----------
        script
            From `potluck.lab.scenario`; times count from now.

        Raises
        ------
        HomeError
            This is a real home.
        """
        if self._lab is None:
            raise HomeError(
                "what happens in a real home cannot be scripted.", next_step="Use Home.lab()."
            )
        self._lab.play(script)

    # --- closing ----------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether it has been closed."""
        return self._closed

    def close(self) -> None:
        """Say goodbye to every device and end local agents; safe to call twice."""
        if self._closed:
            return
        self._closed = True
        if self._window is not None:
            self._window.close()
        self._end_services()
        self._members.close()
        self._link.close()
        for kept in (self._ring, self._lab):
            if kept is not None:
                kept.close()

    def __enter__(self) -> "Home":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        why = f": {self._given}" if self._given else ""
        return (
            f"<Home, closed{why}>"
            if self._closed
            else f"<Home of {len(self._members)}: {', '.join(self._members)}>"
        )
