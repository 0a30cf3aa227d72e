"""Packages that the light install leaves out: which extra brings each, as an error that says so."""

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


def missing(error: ImportError) -> UserError | None:
    """What to install, where an optional package is not there; None for any other failed import."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        return None
    return UserError(
        f"this needs the package {package}, which is not installed.",
        next_step=f"pip install 'potluck[{EXTRAS[package]}]'",
        package=package,
    )
