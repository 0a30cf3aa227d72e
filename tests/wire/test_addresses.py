"""What is an address of a host and what is a name, the same for agents, notebooks and discovery."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from potluck_wire.addresses import is_address


@given(st.ip_addresses())
def test_every_address_of_one_host_is_one(address):
    assert is_address(str(address)) is not (address.is_multicast or address.is_unspecified)


@pytest.mark.parametrize(
    "host", ["", "jetson.local", "1.2.3", "1.2.3.4.5", "01.2.3.4", "1.2.3.4%eth0", "::1]", "1", "☃"]
)
def test_anything_else_is_a_name(host):
    assert not is_address(host)


@given(st.text())
def test_no_text_raises(host):
    is_address(host)


def test_an_address_may_name_its_interface():
    assert is_address("fe80::1%eth0")
    assert ipaddress.ip_address("fe80::1%eth0").is_link_local
