"""What a home has to serve by: `home.serve`, `home.services`, `home.gateway`."""

import threading
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from potluck import display_hooks
from potluck.errors import HomeError, UserError
from potluck.handle import Handle, Task
from potluck.sessions.link import SessionLink
from potluck.sessions.members import Members

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from potluck.graph import LanguageModel, Model
    from potluck.lab.lab import Playground
    from potluck.profile.profiles import Profile
    from potluck.run.run import Run
    from potluck.serve.gateway.server import Gateway
    from potluck.serve.runtime.service import Service
    from potluck.serve.runtime.services import Services
    from potluck.serve.runtime.serving import Serving
    from potluck.serve.runtime.text_service import TextService
    from potluck.serve.scheduling.records import Slo

_Made = TypeVar("_Made")  # a service
_making = threading.Lock()  # of the services of a home, which come with the first of them


class ServingHome:
    """The part of a `Home` that serves. Nothing of it is there before it is asked for."""

    _link: SessionLink
    _members: Members
    _closed: bool
    _runs: "weakref.WeakSet[Run]"
    _work: "weakref.WeakSet[Handle[Any]]"
    _lab: "Playground | None"
    _profiles: "dict[str, Profile]"
    _serving: "Serving | None" = None
    _gateways: "tuple[Gateway, ...]" = ()
    _texts: "Mapping[str, TextService]" = MappingProxyType({})
    _coming: frozenset[str] = frozenset()  # names of services that are being made

    def serve(
        self,
        model: "Model",
        name: str = "",
        *,
        slo: "Slo",
        priority: int = 0,
        max_queue: int = 1024,
        per_s: float = 0.0,
    ) -> "Handle[Service]":
        """Answer requests to a model from now on, within a limit, on all devices beside whatever
        else they serve.

        Batches of growing size are measured on each device, and the allocator chooses how many rows
        are computed together where. What has no chance to be answered in time is refused at once.
        Values of the model are those of now, of which a copy is kept here.

        Parameters
        ----------
        model
            For inference: of torch or ONNX.
        name
            Of the service; default: that of the model.
        slo
            `potluck.Latency(seconds)` for each request, or `potluck.Frequency(fps=30)` for streams
            of frames.
        priority
            Where devices cannot do all, a service gets eight times as much of their time as one of
            the next lower priority.
        max_queue
            Rows that may wait; more are refused at once.
        per_s
            Requests or frames per second that are expected; default: not known.

        Returns
        -------
        Handle[Service]
            Call it: `service(x)`.

        Raises
        ------
        UserError
            A name, limit or number is not what it should be.
        OutOfMemory
            No device has room for it.
        Infeasible
            No device can hold the limit; says the best possible.
        """
        from potluck.graph.language_model import LanguageModel
        from potluck.graph.partition.outputs import need_rows_apart
        from potluck.graph.values import with_values_of_now
        from potluck.profile.measure import need_model
        from potluck.serve.runtime.argument_checks import check_serving
        from potluck.serve.runtime.device_placement import ServiceDemand
        from potluck.serve.runtime.service import Service

        need_model(model, "served")
        if isinstance(model, LanguageModel):
            raise UserError(
                "a language model writes texts.", next_step="Call home.serve_text(model, name)."
            )
        need_rows_apart(model, "served")
        name = name or model.name
        check_serving(name, slo, priority, max_queue, per_s)
        model.check_as_traced()
        model = with_values_of_now(model)  # devices that come later get the same
        serving = self._services()
        wanted = ServiceDemand(
            name=name, model=model, slo=slo, priority=priority, max_queue=max_queue, per_s=per_s
        )

        def work(task: Task) -> "Service":
            serving.serve(wanted, task.update)
            return Service(serving, wanted)

        return self._made_in_background(name, work)

    def serve_text(
        self,
        model: "LanguageModel",
        name: str = "",
        *,
        token_s: float = 0.0,
        priority: int = 0,
        max_queue: int = 64,
    ) -> "Handle[TextService]":
        """Write texts for whoever asks from now on, on the plan by which a token takes the least
        time, of those that share no rows among devices.

        As many are written at once as the model has rows; `max_queue` more may wait, and others are
        refused at once.

        Parameters
        ----------
        model
            The language model.
        name
            Of the service; default: that of the model.
        token_s
            The most seconds that a token may take, for all rows at once; 0: no limit.
        priority
            Where devices compute for other services, too, it gets eight times as much of their time
            as one of the next lower priority.
        max_queue
            Texts that may wait.

        Returns
        -------
        Handle[TextService]
            `service.generate(prompt)`; programs ask it by `home.gateway`.

        Raises
        ------
        UserError
            It is no language model, or a name or number is not what it should be.
        OutOfMemory
            No plan has room for it.
        Infeasible
            No plan holds the limit; says the best possible.
        """
        from potluck.graph.language_model import LanguageModel
        from potluck.planning.api import plan
        from potluck.records import Inference, QoE
        from potluck.serve.runtime.argument_checks import check_text_serving
        from potluck.serve.runtime.text_service import TextService, best_to_write

        if not isinstance(model, LanguageModel):
            raise UserError(
                f"{model!r} writes no texts.",
                next_step="Give a potluck.LanguageModel; home.serve serves other models.",
            )
        name = name or model.name
        check_text_serving(name, token_s, priority, max_queue)

        def work(task: Task) -> "TextService":
            profile = self._profiled(model)
            qoe = QoE(latency_s=token_s) if token_s else QoE()
            home: Any = self  # a `Home`, which deploys
            best = best_to_write(plan(profile, Inference(batch=model.rows), qoe))
            run = home.deploy(best, model, profile=profile).wait()
            run.write_in_turns(
                partial(self._services().dispatch.turns.turn, name, priority=priority)
            )
            service = TextService(name, run, model, max_queue)
            with _making:
                self._texts = {**self._texts, name: service}
            return service

        return self._made_in_background(name, work)

    def _made_in_background(self, name: str, work: "Callable[[Task], _Made]") -> "Handle[_Made]":
        """The service that `work` makes; nobody else makes one of its name meanwhile."""
        with _making:
            if name in self._coming or name in self.texts or name in self.services:
                raise UserError(
                    f"a service is called {name!r} already.",
                    next_step="Close it first, or choose another name.",
                )
            self._coming |= {name}

        def made(task: Task) -> "_Made":
            try:
                return work(task)
            finally:
                with _making:
                    self._coming -= {name}

        handle = Handle(made, f"serving {name}")
        self._work.add(handle)
        return handle

    @property
    def texts(self) -> "Mapping[str, TextService]":
        """The services that write texts, by name, without those that have ended."""
        return {name: each for name, each in self._texts.items() if each.run.is_open}

    def _profiled(self, model: "Model") -> "Profile":
        """The profile of this model for inference, as it is known or made now."""
        known = self._profiles.get(model.signature)
        if known is not None and known.inference is not None:
            return known
        home: Any = self  # a `Home`, which profiles
        measured: Profile = home.profile(model, train=False).wait()
        return measured

    @property
    def _plays_profiles(self) -> bool:
        """Whether devices last as long as a profile says, since they are emulated."""
        return self._lab is not None and self._lab.emulation is not None

    @property
    def services(self) -> "Services":
        """What this home serves, by name; shows itself as a table of who has what, and what became
        of the requests.
        """
        from potluck.serve.runtime.service import Service
        from potluck.serve.runtime.services import Services

        if (serving := self._serving) is None:
            return Services({})
        return Services({name: Service(serving, each) for name, each in serving.served.items()})

    def gateway(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str = "",
        certificate: str | Path | None = None,
        key: str | Path | None = None,
        max_body_bytes: int = 64 * 2**20,
        watch: bool = False,
        tracer_provider: "TracerProvider | None" = None,
    ) -> "Gateway":
        """Let programs ask this home's services over HTTP: by the Open Inference Protocol v2, as
        clients of Triton and KServe speak it.

        Open until it, or the home, is closed. This process is the entrance.

        Parameters
        ----------
        host, port
            Where it listens; by default this computer alone, at a free port.
        token
            What clients have to show as `Authorization: Bearer TOKEN`; needed beyond this computer.
        certificate, key
            Files in PEM form, for HTTPS.
        max_body_bytes
            Of one request; longer ones are refused before they are read.
        watch
            Whether it also serves the home's live page, to look at only: at the `watch_url` of what
            this returns, for a browser on a phone.
        tracer_provider
            One of OpenTelemetry: gets a span of each request, with its waiting and its batches.

        Raises
        ------
        UserError
            It would be open to other computers without a token.
        HomeError
            Something else listens there.
        FileError
            The certificate cannot be used.
        """
        from potluck.serve.gateway.server import Gateway

        if self._closed:
            raise HomeError("this home is closed.", next_step="Make a new one.")
        page = display_hooks.gateway_page(self) if watch else None
        opened = Gateway(
            lambda: self.services,
            texts=lambda: self.texts,
            host=host,
            port=port,
            token=token,
            certificate=certificate,
            key=key,
            max_body_bytes=max_body_bytes,
            page=page,
            tracer_provider=tracer_provider,
        )
        self._gateways = (*self._gateways, opened)
        return opened

    def _services(self) -> "Serving":
        from potluck.serve.runtime.serving import Serving

        with _making:
            if self._closed:
                raise HomeError("this home is closed.", next_step="Make a new one.")
            if self._serving is None:
                self._serving = Serving(
                    self._link, self._members, self._profiled, is_played=self._plays_profiles
                )
            return self._serving

    @property
    def _is_at_work(self) -> bool:
        """Whether something is under way."""
        is_running = any(run.is_open for run in self._runs)
        return is_running or bool(self.services) or not all(work.done for work in self._work)

    def _end_services(self) -> None:
        for gateway in self._gateways:
            gateway.close()
        if self._serving is not None:
            self._serving.close()
