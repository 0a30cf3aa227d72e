"""What the shipped code names, read from its syntax: calls, imports and attributes, by file."""

import ast
import importlib.util
from functools import cache
from pathlib import Path

PACKAGES = ("potluck_agent", "potluck_wire", "potluck")


def trees(*packages):
    """(file, syntax tree) of every module of these packages."""
    return [pair for package in packages or PACKAGES for pair in _trees(package)]


@cache
def _trees(package):
    folder = Path(importlib.util.find_spec(package).origin).parent
    return [(path, ast.parse(path.read_text())) for path in sorted(folder.rglob("*.py"))]


def dotted(node):
    """`a.b.c` of an expression, "" where it is none."""
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr}" if before else f".{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


@cache
def called(tree):
    """The dotted names of all that is called."""
    return {dotted(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}


@cache
def imported(tree):
    """The modules that are imported, and `module.name` of what comes from them."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found
