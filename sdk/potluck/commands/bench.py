"""`potluck bench NAME`: measures, prints a table, and writes the figures as JSON where asked."""

import argparse
import json
from pathlib import Path

from potluck.bench import BENCHES, harness
from potluck.documents import write_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The name, where to write JSON, and settings to change."""
    parser.add_argument(
        "name",
        choices=[*BENCHES, "all"],
        metavar="NAME",
        help=f"one of {', '.join(BENCHES)}, or all",
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write the result as JSON (a list of them for `all`)",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=NUMBER",
        help="change a setting of the bench",
    )


def main(args: argparse.Namespace) -> int:
    """Run one bench or all of them."""
    changes = dict(harness.parse_setting(text) for text in args.set)
    results = []
    for name in BENCHES if args.name == "all" else [args.name]:
        results.append(harness.run(name, changes if args.name != "all" else {}))
        print(harness.text(results[-1]), end="\n\n")
    if args.json:
        documents = [harness.document(result) for result in results]
        _write(args.json, documents if args.name == "all" else documents[0])
    return 0


def _write(path: Path, document: object) -> None:
    write_text(path, json.dumps(document, indent=2, allow_nan=False) + "\n")
