"""A network becomes layers to plan with, and segments to send: `Model.from_torch`,
`Model.from_onnx`.

Importing this loads no torch; making a model does.
"""

from .model import Model

__all__ = ["Model"]
