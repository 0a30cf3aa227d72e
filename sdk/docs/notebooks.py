"""`python sdk/docs/notebooks.py NAME.ipynb ...`: run notebooks and keep what they show,
so that whoever reads them on the web sees pictures.

Live widgets are left out, as they show nothing without a kernel; so are times and versions.
"""

import re
import sys
import tempfile
from pathlib import Path

import jupyter_client
import nbclient
import nbformat
from ipykernel import kernelspec

from potluck.display.scene import on_paper

SVG = re.compile(r"<svg .*?</svg>", re.DOTALL)
FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
LIVE = "application/vnd.jupyter.widget-view+json"
WAIT_S = 900


def main(names: list[str]) -> None:
    """Run each and write it anew."""
    for name in names:
        path = FOLDER / name
        notebook = nbformat.read(path, as_version=4)
        execute(notebook)
        notebook.metadata = {key: notebook.metadata[key] for key in ("kernelspec", "language_info")}
        notebook.metadata["language_info"] = {"name": "python"}
        for cell in notebook.cells:
            cell.metadata = {}
            if cell.cell_type == "code":
                kept = [one_picture(made) for made in cell.outputs if lasts(made)]
                cell.outputs = [part for made in kept for part in pictures_first(made)]
        nbformat.write(notebook, path)
        print(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB")


def execute(notebook: nbformat.NotebookNode) -> None:
    """Run all cells by this very interpreter, from the repository's root."""
    with tempfile.TemporaryDirectory() as folder:
        kernelspec.write_kernel_spec(str(Path(folder) / "this"))
        specs = jupyter_client.kernelspec.KernelSpecManager(
            kernel_dirs=[folder], ensure_native_kernel=False
        )
        manager = jupyter_client.AsyncKernelManager(kernel_name="this", kernel_spec_manager=specs)
        resources = {"metadata": {"path": str(FOLDER.parent)}}
        nbclient.NotebookClient(notebook, km=manager, timeout=WAIT_S, resources=resources).execute()


def one_picture(output: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """A picture as an image alone: web pages that show notebooks take HTML first, and strip it."""
    if "image/svg+xml" in output.get("data", {}):
        output.data.pop("text/html", None)
    return output


def pictures_first(output: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    """The pictures in an output's HTML as images before it: web pages strip them inside."""
    data = output.get("data", {})
    found = SVG.findall(data.get("text/html", ""))
    if not found or "image/svg+xml" in data:
        return [output]
    data["text/html"] = SVG.sub("", data["text/html"])
    return [
        *(
            nbformat.v4.new_output("display_data", {"image/svg+xml": on_paper(svg)})
            for svg in found
        ),
        output,
    ]


def lasts(output: nbformat.NotebookNode) -> bool:
    """Whether an output shows something without its kernel."""
    data = output.get("data", {})
    if output.output_type == "stream" and output.name == "stderr":
        return False
    return LIVE not in data and data != {"text/plain": ""}


if __name__ == "__main__":
    main(sys.argv[1:])
