"""What a docstring in numpy form lacks, read from the source: parameters without a word, errors
that come unsaid.
"""

import ast
import re
from collections.abc import Iterator

MANY = 3  # parameters from which on each is explained
HEAD = re.compile(r"^(\w+)\n-+$", re.MULTILINE)

Function = ast.FunctionDef | ast.AsyncFunctionDef


def lacks(source: str) -> list[str]:
    """`function: what is missing`, for the public functions and methods of a module."""
    return [
        f"{name}: {fault}"
        for name, node, doc in functions(ast.parse(source))
        for fault in faults(node, doc)
    ]


def functions(
    tree: ast.Module | ast.ClassDef, prefix: str = ""
) -> Iterator[tuple[str, Function, str]]:
    """(name, function, docstring) of what is public; a constructor is explained by its class."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, Function) and not overloads(node):
            if node.name == "__init__":
                yield prefix.rstrip("."), node, ast.get_docstring(tree) or ""
            elif not node.name.startswith("_"):
                yield prefix + node.name, node, ast.get_docstring(node) or ""


def overloads(node: Function) -> bool:
    """Whether this is but a signature for the type checker."""
    return any("overload" in ast.unparse(decorator) for decorator in node.decorator_list)


def faults(node: Function, doc: str) -> Iterator[str]:
    """What the docstring of one function lacks."""
    found = sections(doc)
    given, explained = parameters(node), names(found.get("Parameters", ""))
    if len(given) >= MANY:
        yield from (
            f"the parameter {name} is not explained" for name in given if name not in explained
        )
    if explained:
        yield from (f"it has no parameter {name}" for name in sorted(explained - set(given)))
    raised, texts = errors(node), names(found.get("Raises", ""))
    if raised and not texts:
        yield f"it raises {', '.join(sorted(raised))}, and has no Raises section"
    elif missing := sorted(name for name in raised if name[:1].isupper() and name not in texts):
        yield f"it raises {', '.join(missing)}, which Raises does not name"


def parameters(node: Function) -> list[str]:
    """The parameters by name, without the object itself."""
    arguments = node.args
    found = [
        *arguments.posonlyargs,
        *arguments.args,
        arguments.vararg,
        *arguments.kwonlyargs,
        arguments.kwarg,
    ]
    return [argument.arg for argument in found if argument and argument.arg not in ("self", "cls")]


def errors(node: Function) -> set[str]:
    """What it raises itself: the name of a class, or whatever makes the error."""
    raised = [part.exc for part in inside(node) if isinstance(part, ast.Raise) and part.exc]
    return {ast.unparse(error.func if isinstance(error, ast.Call) else error) for error in raised}


def inside(node: ast.AST) -> Iterator[ast.AST]:
    """All that is in a function, but not what the functions in it do when somebody calls them."""
    for part in ast.iter_child_nodes(node):
        if not isinstance(part, Function | ast.Lambda):
            yield part
            yield from inside(part)


def sections(doc: str) -> dict[str, str]:
    """The text of each section of a docstring, by its heading."""
    parts = HEAD.split(doc)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def names(section: str) -> set[str]:
    """What a section has entries for; one entry may be for several names."""
    heads = [line for line in section.splitlines() if re.fullmatch(r"[\w.*]+(, [\w.*]+)*", line)]
    return {name.lstrip("*") for head in heads for name in head.split(", ")}
