"""Groups of devices as text and as a picture."""

import potluck
from potluck.display import dendrogram
from potluck.planning.grouping import best_grouping


def grouping():
    profile = potluck.estimate("deepcee-1", "resnet101-cifar", max_layers=4, rows=(1,))
    problem = profile.problem(potluck.Training(batch=8), potluck.QoE())
    return best_grouping(problem, lambda g: abs(len(g.groups) - 2) + 1.0)


def test_the_tree_says_who_is_joined_and_where_it_is_cut():
    best, seconds = grouping()
    text = dendrogram.text(best, seconds)
    assert "65.5 µs: cloud-1-1, cloud-1-2, cloud-1-3, cloud-1-4" in text
    assert "group 1: cloud-1-1" in text
    assert text.count("<- chosen") == 1
    assert all(name in text for name in ("edge-3-2", "end-4"))


def test_the_picture_has_every_device_and_the_cut():
    best, _ = grouping()
    svg = dendrogram.picture(best).svg()
    assert all(f">{name}<" in svg for region in best.regions for name in region)
    assert "stroke-dasharray" in svg
    assert "22 devices in 2 groups" in svg
