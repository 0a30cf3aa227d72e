"""Networks as routes through one hub: every path crosses its media, in order, and shares what it
should.
"""

import pytest

from potluck.errors import UserError
from potluck.lab import routes
from potluck.profile.library import load_home
from potluck.profile.topology import Attachment, HomeWiring, build
from potluck.records import HOME

MEMBERS = [Attachment(name=name, port=name) for name in ("a", "b", "c", "d")]
TWO_WIRED = [
    *MEMBERS[:2],
    Attachment(name="c", port="c", wired=True),
    Attachment(name="d", port="d", wired=True),
]


def lay(topology, members=MEMBERS, **more):
    network = build(HomeWiring(topology=topology, capacity_bytes_per_s=1e6, **more), members, "a")
    return routes.layout(network, [member.name for member in members], "198.18.0")


def test_wifi_crosses_the_one_air_twice():
    plan = lay("wifi")
    up, down = plan.route("a", "b")
    assert (up.medium, down.medium) == ("air", "air")
    assert up.entrance != down.entrance
    assert plan.route("c", "d") == (up, down)
    assert plan.route(HOME, "b") == (up, down)
    assert plan.route(HOME, "a") == ()


def test_a_wired_device_saves_one_crossing():
    plan = lay("wifi", TWO_WIRED, cable_bytes_per_s=2e6)
    assert [hop.medium for hop in plan.route("a", "c")] == ["air", "c down"]
    assert [hop.medium for hop in plan.route("c", "a")] == ["c up", "air"]
    assert [hop.medium for hop in plan.route("c", "d")] == ["c up", "d down"]


def test_a_ring_goes_the_shorter_way_round():
    assert [hop.medium for hop in lay("ring").route("a", "c")] == ["a > b", "b > c"]
    assert [hop.medium for hop in lay("ring").route("a", "d")] == ["a > d"]


def test_rules_lead_from_medium_to_medium_and_then_home():
    plan = lay("switch")
    up, down = plan.route("a", "b")
    rules = [line for line in routes.hub_routes(plan) if "from 198.18.0.10 to 198.18.0.11 " in line]
    assert rules == [
        f"rule add from 198.18.0.10 to 198.18.0.11 iif air lookup {up.table}",
        f"rule add from 198.18.0.10 to 198.18.0.11 iif {up.exit} lookup {down.table}",
    ]


def test_names_and_addresses_differ():
    plan = routes.layout(
        load_home("deepcee-2").network, [d.name for d in load_home("deepcee-2").devices], "198.18.3"
    )
    ends = [end for hop in plan.hops for end in (hop.entrance, hop.exit)]
    assert len(set(ends)) == len(ends)
    assert all(len(end) <= 15 for end in ends)  # longer ones Linux refuses
    assert len({hop.table for hop in plan.hops}) == len(plan.hops)
    addresses = {plan.address(name) for name in (*plan.devices, HOME)} | {plan.gateway}
    assert len(addresses) == len(plan.devices) + 2


def test_a_medium_is_shaped_to_its_rate_and_shared_by_all_pairs():
    plan = lay("wifi")
    lines = routes.rates(plan, "air", 1e6)
    assert lines[0].startswith(
        f"class replace dev {plan.entrance('air')} parent 1: classid 1:1 htb rate "
        f"{8e6 * routes.FRAMING:.0f}bit"
    )
    n_crossings = 2 * (12 + 2 * 3)  # of all pairs, and of home, which is at a's: up and down
    assert len(plan.crossings("air")) == n_crossings
    # and acknowledgements and heartbeats
    assert sum("ceil" in line for line in lines) == n_crossings + 1


def test_up_and_down_wait_in_queues_of_their_own():
    plan = lay("wifi", TWO_WIRED, cable_bytes_per_s=2e6)
    between = f"src {plan.address('a')} match ip dst {plan.address('b')} "
    queues = [line for line in routes.shapers(plan) if between in line]
    assert [line.rpartition("ether dst ")[2].split()[0] for line in queues] == [
        f"02:70:6c:00:{hop.table:02x}:02" for hop in plan.route("a", "b")
    ]
    assert len({line.rpartition("flowid ")[2] for line in queues}) == 2
    between = f"src {plan.address('a')} match ip dst {plan.address('c')} "
    # one on the air, one on c's cable
    assert sum(between in line for line in routes.shapers(plan)) == 2


def test_loss_is_put_where_packets_leave_a_medium():
    plan = lay("wifi")
    text = "\n".join(routes.losses(plan, {"air": 0.02}))
    assert text.count("numgen random mod 1000000 < 20000 drop") == 2  # one chance each crossing
    assert "chain" not in "\n".join(routes.losses(plan, {"air": 0.0}))


def test_too_many_devices_are_refused():
    network = lay("wifi").network
    with pytest.raises(UserError, match="201 devices"):
        routes.layout(network, [f"d{i}" for i in range(201)], "198.18.0")
