"""The exchange of states in a ring: spread, loss, silence, lies and restarts."""

from math import ceil
from random import Random

import pytest

from potluck.errors import UserError
from potluck.serve.scheduling.records import ServerState, ServiceState
from potluck.serve.scheduling.state_exchange import (
    SILENT_INTERVALS,
    IntervalOver,
    MembershipChanged,
    NeighbourMessage,
    Ring,
    StateMessage,
)


class Exchange:
    """A ring of servers whose messages take no time, some of which are lost."""

    def __init__(self, n_servers, loss_frac=0.0, seed=0):
        self.names = [f"s{n}" for n in range(n_servers)]
        self.rings = {name: Ring(name, self.names, 1.0) for name in self.names}
        self.loss_frac, self.rng = loss_frac, Random(seed)
        self.now_s = 0.0
        self.dead = set()
        self.n_states = 0
        self.value = 0.0

    def round(self, n_rounds=1):
        for _ in range(n_rounds):
            self.now_s += 1.0
            self.value += 1.0
            sent = []
            for name, ring in self.rings.items():
                if name not in self.dead:
                    for tell in ring.handle(IntervalOver(own(name, self.value)), self.now_s):
                        sent.append((name, tell))
            for name, tell in sent:
                self.n_states += len(tell.message.states)
                if tell.server not in self.dead and self.rng.random() >= self.loss_frac:
                    self.rings[tell.server].handle(NeighbourMessage(name, tell.message), self.now_s)

    def seen(self, of, by):
        state, age_s = self.rings[by].states(self.now_s)[of]
        return state.services["x"].queue_s, age_s


def own(name, value):
    row = ServiceState(capacity_per_s=1.0, idle_per_s=1.0, queue_s=value)
    return ServerState(server=name, version=0, services={"x": row})


@pytest.mark.parametrize("n_servers", [2, 3, 4, 7, 10])
def test_everybody_knows_everybody_half_a_ring_later(n_servers):
    exchange = Exchange(n_servers)
    exchange.round(ceil((n_servers - 1) / 2) + 5)
    for by in exchange.names:
        for of in exchange.names:
            if of != by:
                offset = (exchange.names.index(of) - exchange.names.index(by)) % n_servers
                distance = min(offset, n_servers - offset)
                value, age_s = exchange.seen(of, by)
                assert (exchange.value - value, age_s) == (distance - 1, distance - 1)


def test_each_server_tells_of_each_other_once_a_round():
    exchange = Exchange(10)
    exchange.round(20)
    before = exchange.n_states
    exchange.round(10)
    per_server = (exchange.n_states - before) / 10 / 10
    assert per_server <= len(exchange.names) + 1  # its own to both sides


def test_a_lone_server_tells_nobody():
    ring = Ring("a", ["a"], 1.0)
    assert ring.handle(IntervalOver(own("a", 1.0)), 0.0) == []


@pytest.mark.parametrize("seed", range(5))
def test_states_arrive_although_a_fifth_of_all_messages_is_lost(seed):
    exchange = Exchange(9, loss_frac=0.2, seed=seed)
    exchange.round(40)
    for by in exchange.names:
        states = exchange.rings[by].states(exchange.now_s)
        assert {*states, by} == {*exchange.names}
        assert max(age_s for _, age_s in states.values()) <= exchange.rings[by].most_age_s


def test_a_silent_neighbour_is_skipped_and_taken_back_when_it_is_heard():
    exchange = Exchange(5)
    exchange.round(6)
    exchange.dead.add("s2")
    exchange.round(SILENT_INTERVALS + 2)
    assert exchange.rings["s1"].neighbours == ("s0", "s3")
    exchange.round(6)
    assert exchange.seen("s3", by="s1")[0] == exchange.value
    exchange.dead.remove("s2")
    exchange.round(3)
    assert exchange.rings["s1"].neighbours == ("s0", "s2")


def test_two_halves_of_a_cut_ring_go_on_by_themselves_and_heal():
    exchange = Exchange(6)
    exchange.round(6)
    halves = {name: n // 3 for n, name in enumerate(exchange.names)}

    def cut_round():
        exchange.now_s += 1.0
        exchange.value += 1.0
        sent = [
            (name, tell)
            for name, ring in exchange.rings.items()
            for tell in ring.handle(IntervalOver(own(name, exchange.value)), exchange.now_s)
        ]
        for name, tell in sent:
            if halves[name] == halves[tell.server]:
                exchange.rings[tell.server].handle(
                    NeighbourMessage(name, tell.message), exchange.now_s
                )

    for _ in range(60):
        cut_round()
    assert {*exchange.rings["s0"].states(exchange.now_s)} == {"s1", "s2"}
    exchange.round(10)
    assert {*exchange.rings["s0"].states(exchange.now_s)} == {*exchange.names} - {"s0"}


def test_what_is_too_old_is_not_used():
    exchange = Exchange(3)
    exchange.round(4)
    exchange.dead.add("s1")
    ring = exchange.rings["s0"]
    assert "s1" in ring.states(exchange.now_s)
    exchange.round(int(ring.most_age_s) + 2)
    assert "s1" not in ring.states(exchange.now_s)


@pytest.mark.parametrize("version", [0, 3, 1_000_000])
def test_wrong_data_heals_in_one_round(version):
    exchange = Exchange(8)
    exchange.round(10)
    known = exchange.rings["s4"].states(exchange.now_s)["s5"][0].version
    lie = ServerState(server="s5", version=known + version, services=own("s5", 9999.0).services)
    exchange.rings["s4"].handle(
        NeighbourMessage("s3", StateMessage((lie,), (0.0,))), exchange.now_s
    )
    exchange.round(len(exchange.names))
    for by in exchange.names:
        if by != "s5":
            assert exchange.seen("s5", by)[0] > exchange.value - len(exchange.names)
            assert exchange.seen("s5", by)[0] < 9999.0


def test_a_server_that_starts_again_is_believed_again():
    exchange = Exchange(5)
    exchange.round(30)
    exchange.rings["s2"] = Ring("s2", exchange.names, 1.0)
    exchange.value = 500.0
    exchange.round(8)
    assert all(exchange.seen("s2", by)[0] > 500.0 for by in exchange.names if by != "s2")


def test_membership_is_the_roster():
    exchange = Exchange(4)
    exchange.round(5)
    roster = ("s0", "s1", "s3")
    for name in roster:
        exchange.rings[name].handle(MembershipChanged(roster), exchange.now_s)
    exchange.dead.add("s2")
    exchange.round(3)
    assert {*exchange.rings["s1"].states(exchange.now_s)} == {"s0", "s3"}
    with pytest.raises(UserError, match="not in its own ring"):
        exchange.rings["s0"].handle(MembershipChanged(("s1",)), exchange.now_s)


def test_strangers_are_not_believed():
    ring = Ring("a", ["a", "b"], 1.0)
    ring.handle(NeighbourMessage("x", StateMessage((own("b", 1.0),), (0.0,))), 0.0)
    ring.handle(NeighbourMessage("b", StateMessage((own("x", 1.0),), (0.0,))), 0.0)
    assert ring.states(0.0) == {}
