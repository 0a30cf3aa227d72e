"""The network of real agents: measured by a profile, kept beside the keys, drawn by `doctor`, and
declared otherwise by the owner.
"""

import warnings
from dataclasses import replace

import pytest
from tests.sdk.run.conftest import make_model

import potluck
from potluck.commands import doctor
from potluck.errors import FileError
from potluck.profile import measure_network, network
from potluck.profile.home_network import AIR, Figure, HomeNetwork, SharedMedium
from potluck.profile.network_file import FILE, load_network, save_network
from potluck.records import HOME
from potluck.sessions.agent_specs import Spec
from potluck.sessions.local_agents import LocalAgents

pytest.importorskip("torch")
NAMES = ("desk", "shelf")


@pytest.fixture
def paired(tmp_path, monkeypatch):
    """A home of two paired agents, each taken for a machine of its own."""
    monkeypatch.setenv("POTLUCK_HOME", str(tmp_path))
    for module in (measure_network, network):
        monkeypatch.setattr(
            module, "machines", lambda found, host: {HOME: [HOME], **{n: [n] for n in found}}
        )
    agents = LocalAgents([Spec(name=name) for name in NAMES], None, extra=["--pair"])
    try:
        with potluck.Home(state=tmp_path) as home:
            home.pair_all({str(agent.address): agent.code for agent in agents.agents})
            yield home
    finally:
        agents.close()


@pytest.mark.long
@pytest.mark.slow
def test_a_network_is_kept_drawn_corrected_and_given_back(paired, tmp_path):
    _, model = make_model("mlp")
    assert not paired.network.media
    assert "not known yet" in doctor.show(doctor.network())
    paired.profile(model, train=False, rows=(1,), repeats=1).wait()
    kept = load_network(tmp_path / FILE)
    assert kept.media == paired.network.media
    assert set(kept.devices) == {*NAMES, HOME}
    assert not kept.is_declared
    drawn = doctor.show(doctor.network())
    assert all(name in drawn for name in kept.devices)

    air = SharedMedium(
        name="my wifi", kind=AIR, devices=(HOME, *NAMES), up_bytes_per_s=Figure(value=1e3)
    )
    declared = HomeNetwork(media=(air,))
    with pytest.warns(UserWarning, match="was declared gives .* measured is"):
        profile = paired.profile(model, train=False, rows=(1,), repeats=1, network=declared).wait()
    assert any("was declared gives" in note for note in profile.notes)
    (row,) = paired.network.media
    assert (row.name, row.kind, row.devices) == ("my wifi", AIR, (HOME, *NAMES))
    assert row.up_bytes_per_s.value > 1e5
    assert {name for path in profile.network.paths.values() for name, _ in path.media} == {
        "my wifi"
    }
    assert load_network(tmp_path / FILE).is_declared

    # what is declared beside the keys holds for the next profile, too, and is now no contradiction
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other tests of this machine change what loopback carries
        paired.profile(model, train=False, rows=(1,), repeats=1).wait()
    assert [row.name for row in paired.network.media] == ["my wifi"]

    save_network(replace(kept, is_declared=False), tmp_path / FILE)
    (tmp_path / FILE).write_text("media = 7\n")
    with pytest.raises(FileError, match=FILE):
        paired.profile(model, train=False, rows=(1,), repeats=1)
    assert doctor.network().level == doctor.BAD


@pytest.mark.long
def test_a_device_that_no_row_names_has_a_port_and_is_told(paired):
    _, model = make_model("mlp")
    declared = HomeNetwork(media=(SharedMedium(name="air", kind=AIR, devices=(HOME, "desk")),))
    with pytest.warns(UserWarning, match="does not name shelf"):
        paired.profile(model, train=False, rows=(1,), repeats=1, network=declared).wait()
    assert {row.devices for row in paired.network.media} == {(HOME, "desk"), ("shelf",)}
