"""EPARA, its baselines and ours, each as a `Scheme` with its source and where this form differs.

Strong forms: each baseline gets what its paper leaves open in the best way that we know. All know
the demand that placement is told, drop what has timed out, and have dynamic batches where they
batch. `as_printed` takes from a baseline what EPARA's paper says that it lacks: batches of several
frames of one stream, and frames of one stream on several replicas.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from potluck.serve.baselines.routers import RoundRobin, least_loaded, soonest, two_choices
from potluck.serve.scheduling.allocate import Operators
from potluck.serve.scheduling.node import Policy
from potluck.serve.scheduling.placement import Allocations, Demand, Placement, place, place_best
from potluck.serve.scheduling.records import Server
from potluck.serve.simulate.scheme import Scheme, ServerKnowledge
from potluck_wire.request_handler import Choose, HandlerRules, by_idle_goodput, by_spare_finish

SPLIT_ONLY = Operators(batching=False, multi_task=False)
WHOLE_STREAMS = HandlerRules(splits=False)
ALONE = HandlerRules(max_offloads=0, splits=False)


def _policy(
    choose: Choose, rules: HandlerRules = WHOLE_STREAMS, *, early_drop: bool = False
) -> Policy:
    return Policy(choose=choose, rules=rules, early_drop=early_drop)


def _round_robin() -> Policy:
    return _policy(RoundRobin())


def _place_alone(servers: Sequence[Server], allocations: Allocations, demand: Demand) -> Placement:
    """For servers that hand nothing on: only requests that arrive where a replica is count."""
    return place_best(servers, allocations, demand, remote_frac=0.0)


EPARA = Scheme(
    name="epara",
    policy=partial(_policy, by_idle_goodput, HandlerRules()),
    place=place,
    source="Wang et al., EPARA",
    differs="placement solves eq. (2) in closed form instead of playing the handler",
)
OURS = Scheme(
    name="potluck",
    policy=partial(_policy, by_spare_finish, HandlerRules(), early_drop=True),
    place=place,
    alternatives=(partial(place, per_share=True),),
    source="this project",
    differs="EPARA with hand-over by expected finish under stale information, refusal at once of "
    "what cannot be met, and the better of two placements when the first requests are played",
)
INTEREDGE = Scheme(
    name="interedge",
    policy=_round_robin,
    place=place,
    source="Brown et al., An Architecture For Edge Networking Services, SIGCOMM 2024; as a "
    "scheduler by EPARA, section 5.1",
    differs="round robin over the servers that have the service, not over all; placement, MP, BS "
    "and MT are EPARA's",
)
ALPASERVE = Scheme(
    name="alpaserve",
    policy=partial(_policy, by_idle_goodput, ALONE, early_drop=True),
    place=_place_alone,
    knows=ServerKnowledge.NOTHING,
    source="Li et al., AlpaServe, OSDI 2023; per server by EPARA, section 5.1",
    differs="its search with a simulator in the loop is the greedy placement here; it drops what "
    "cannot be met, as its own queues do",
)
GALAXY = Scheme(
    name="galaxy",
    policy=partial(_policy, soonest),
    place=place,
    operators=SPLIT_ONLY,
    knows=ServerKnowledge.NOW,
    source="Ye et al., Galaxy, INFOCOM 2024",
    differs="what fits one processor is not split, which serves more; the centre sees exact states",
)
SERV_P = Scheme(
    name="serv-p",
    policy=partial(_policy, soonest),
    place=place_best,
    operators=SPLIT_ONLY,
    knows=ServerKnowledge.NOW,
    handling_s=0.1,  # Fig. 3(e): beyond 100 ms from 10 servers on
    group=10,
    source="Farhadi et al., Service Placement and Request Scheduling, ToN 2021",
    differs="the greedy placement stands for its set function; each decision is exact, takes the "
    "100 ms that EPARA measured, and is never queued; groups of 10 as in EPARA, section 5.2",
)
USHER = Scheme(
    name="usher",
    policy=partial(_policy, by_idle_goodput, ALONE, early_drop=True),
    place=partial(place, remote_frac=0.0, per_share=True),
    knows=ServerKnowledge.NOTHING,
    source="Shubha et al., USHER, OSDI 2024",
    differs="per server, as a datacenter's scheduler; its packing by compute and memory need is "
    "the greedy by gain per share; merging of operators across models is left out",
)
DETRANSFORMER = Scheme(
    name="detransformer",
    policy=partial(_policy, soonest),
    place=place_best,
    operators=SPLIT_ONLY,
    knows=ServerKnowledge.NOW,
    source="Wei et al., DeTransformer, DATE 2024",
    differs="as Galaxy, with the better of two placements for its adaptive one; its cheaper "
    "communication is not modelled, since a split costs the same for all",
)
LEAST_LOADED = Scheme(
    name="least loaded",
    policy=partial(_policy, least_loaded),
    place=place,
    source="practice",
    differs="by the states of the ring",
)
TWO_CHOICES = Scheme(
    name="two choices",
    policy=partial(_policy, two_choices),
    place=place,
    source="Mitzenmacher, The power of two choices, TPDS 2001",
    differs="by the states of the ring",
)
RAY_SERVE = Scheme(
    name="ray serve",
    policy=partial(_policy, two_choices),
    place=place,
    knows=ServerKnowledge.NOW,
    handling_s=1e-3,
    source="Ray Serve's default router: power of two choices over queue lengths that it probes",
    differs="probes are exact and take the 1 ms that Ray states as its overhead; here first",
)

RIVALS = {
    scheme.name: scheme
    for scheme in (
        INTEREDGE,
        ALPASERVE,
        GALAXY,
        SERV_P,
        USHER,
        DETRANSFORMER,
        LEAST_LOADED,
        TWO_CHOICES,
        RAY_SERVE,
    )
}
SCHEMES = {OURS.name: OURS, EPARA.name: EPARA, **RIVALS}


def as_printed(scheme: Scheme) -> Scheme:
    """A baseline without multi-frame and data parallelism, as Table 3 of EPARA has it.

    InterEdge then also forwards to all servers in turn, without knowing who has the service.

    Parameters
    ----------
    scheme
        In its strong form.
    """
    operators = replace(scheme.operators, multi_frame=False, data_parallel=False)
    policy = partial(_on_one_replica, scheme.policy)
    knows = ServerKnowledge.NAMES if scheme.name == INTEREDGE.name else scheme.knows
    name = f"{scheme.name}, as printed"
    return replace(scheme, name=name, operators=operators, policy=policy, knows=knows)


def _on_one_replica(policy: Callable[[], Policy]) -> Policy:
    return replace(policy(), data_parallel=False)
