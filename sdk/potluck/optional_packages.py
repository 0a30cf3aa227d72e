"""Packages that the light install leaves out: which extra brings each, as an error that says so."""

from collections.abc import Iterator
from contextlib import contextmanager

from potluck.errors import UserError
from potluck_wire.install_hints import install

EXTRAS = {
    "anywidget": "notebook",
    "efficientnet_lite_pytorch": "demo",
    "ipywidgets": "notebook",
    "matplotlib": "demo",
    "numpy": "sdk",
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "opentelemetry": "traces",
    "rich": "sdk",
    "safetensors": "sdk",
    "scipy": "sdk",
    "sklearn": "demo",
    "starlette": "serve",
    "torch": "sdk",
    "transformers": "catalog",
    "uvicorn": "serve",
}


@contextmanager
def needed() -> Iterator[None]:
    """What is called inside says what to install where an optional package is not there.

    Raises
    ------
    UserError
        An optional package is not there; says what to install.
    """
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
