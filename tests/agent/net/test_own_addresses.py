"""Which of a machine's addresses the others of a home may know."""

import pytest

from potluck_agent.net.own_addresses import chosen, lan_addresses

LO = ("lo", "127.0.0.1")
DOCKER = ("docker0", "172.17.0.1")
LINK = ("eth1", "169.254.3.4")
ETH, WIFI = ("eth0", "192.168.1.7"), ("wlan0", "10.0.0.3")


@pytest.mark.parametrize(
    ("found", "best"),
    [
        ([LO, DOCKER, LINK, ETH, WIFI], ["192.168.1.7", "10.0.0.3"]),
        ([DOCKER, ("br-1f", "172.18.0.1"), ("tailscale0", "100.64.0.2"), WIFI], ["10.0.0.3"]),
        ([LO, DOCKER, LINK], ["172.17.0.1"]),
        ([LO, LINK], ["169.254.3.4"]),
        ([LO], ["127.0.0.1"]),
        ([], []),
    ],
)
def test_those_of_the_network_come_first(found, best):
    assert chosen(found) == best


def test_an_agent_that_listens_on_one_address_names_it():
    assert lan_addresses("192.168.1.7") == ["192.168.1.7"]
    assert lan_addresses("0.0.0.0")
