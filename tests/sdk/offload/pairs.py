"""Fewer cases than a whole product, in which any two values still meet."""

from itertools import combinations


def covering(cases):
    """Some of the cases, such that any two of their values that meet in one of all meet in one of
    these.
    """
    pairs = {case: set(combinations(enumerate(case), 2)) for case in cases}
    missing, chosen = set().union(*pairs.values()), set()
    while missing:
        best = max(cases, key=lambda case: len(pairs[case] & missing))
        chosen.add(best)
        missing -= pairs[best]
    return chosen
