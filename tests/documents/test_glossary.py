"""GLOSSARY.md is a table to look words up in: sorted, each term once, each with a meaning and a
place.
"""

from tests.structure.lint import ROOT

LINES = (ROOT / "sdk" / "GLOSSARY.md").read_text(encoding="utf-8").splitlines()
ROWS = [
    [cell.strip() for cell in line.split("|")[1:-1]] for line in LINES if line.startswith("| ")
][1:]


def test_terms_are_sorted_and_unique():
    terms = [row[0].lower() for row in ROWS]
    assert terms == sorted(set(terms))


def test_every_term_has_a_meaning_and_a_place():
    assert all(len(row) == 4 and row[1] and row[2].startswith("`") for row in ROWS)
