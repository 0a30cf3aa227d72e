"""Packages that the light install leaves out: which extra brings each, as an error that says so."""

from collections.abc import Iterator
from contextlib import contextmanager

from potluck.errors import UserError

EXTRAS = {
    "efficientnet_lite_pytorch": "demo",
    "ipywidgets": "notebook",
    "matplotlib": "demo",
    "numpy": "sdk",
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "rich": "sdk",
    "safetensors": "sdk",
    "scipy": "sdk",
    "sklearn": "demo",
    "torch": "sdk",
    "transformers": "catalog",
}


def install(extra: str) -> str:
    """What brings an extra: potluck is in no package registry, so that its own folder is what pip
    installs.

    The agent has the same words in `potluck_agent/optional.py`.
    """
    return f"""pip install ".[{extra}]" in potluck's folder"""


@contextmanager
def needed() -> Iterator[None]:
    """What is called inside raises what `missing` says where an optional package is not there."""
    try:
        yield
    except ImportError as error:
        raise missing(error) or error from error


def missing(error: ImportError) -> UserError | None:
    """What to install, where an optional package is not there; None for any other failed import."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        return None
    return UserError(
        f"this needs the package {package}, which is not installed.",
        next_step=f"Run {install(EXTRAS[package])}.",
        package=package,
    )
