"""The homes of `bench tomography` in namespaces: their files hold, and who is wrong is seen."""

import pytest

from potluck.bench.namespaced_homes import HOMES, errors_by_medium
from potluck.profile.library import load_home
from potluck.records import HOME, Medium, Network, Path


def truth_of(wiring, folder):
    path = folder / f"{wiring.name}.toml"
    path.write_text(wiring.toml)
    home = load_home(path)
    return [name for name in (*(d.name for d in home.devices), HOME) if name != "d0"], home.network


@pytest.mark.parametrize("wiring", HOMES, ids=lambda wiring: wiring.name)
def test_the_truth_has_no_error_and_media_of_their_own_have(wiring, tmp_path):
    names, truth = truth_of(wiring, tmp_path)
    right = list(errors_by_medium(names, truth, truth))
    assert bool(right) == (wiring.name != "switch")
    assert all(error == pytest.approx(0.0) for errors in right for error in errors)
    pairs = [(a, b) for a in names for b in names if a != b]
    own = Network(
        media=tuple(
            Medium(name=f"{a} to {b}", capacity_bytes_per_s=truth.bandwidth(a, b)) for a, b in pairs
        ),
        paths={(a, b): Path(media=((f"{a} to {b}", 1),)) for a, b in pairs},
    )
    for errors in errors_by_medium(names, truth, own):
        assert sum(error > 0.25 for error in errors) > 0.5 * len(errors)
