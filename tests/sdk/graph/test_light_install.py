"""Where a package is not installed, whoever needs it is told what to install.

A wrong file is told before that.
"""

import subprocess
import sys

import pytest

from potluck.optional_packages import EXTRAS

CALLS = {
    "a torch module": "potluck.Model.from_torch(object(), ())",
    "an ONNX file": "potluck.Model.from_onnx('small.onnx')",
    "an ONNX file to share": "potluck.accelerate('small.onnx', X(), helper=HelperDevice(home=None, "
    "name='desktop'))",
}
WRONG_FILES = {
    "missing": None,
    "empty": b"",
    "text": b"hello, this is text",
    "zeros": b"\0" * 40,
    "cut": b"\x08\x09:\x7fx",
}
SMALL = b"\x08\x09:\x00"  # an ir_version, and a graph of nothing
SCRIPT = """
import sys
sys.modules |= dict.fromkeys({without})
import potluck
from potluck.offload.accelerate import HelperDevice
class X: shape, detach = (1, 3), None
try:
    {call}
except potluck.PotluckError as error:
    print(type(error).__name__, error)
"""


def output_of(call, folder, without=tuple(EXTRAS)):
    """What a call ends with where those packages are not installed.

    Nothing but an error of potluck's is caught.
    """
    script = SCRIPT.format(without=sorted(without), call=call)
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=folder, check=False
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


@pytest.mark.long
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_call_that_needs_a_package_says_what_to_install(call, tmp_path):
    (tmp_path / "small.onnx").write_bytes(SMALL)
    output = output_of(call, tmp_path)
    assert output.startswith("UserError this needs the package")
    assert 'pip install ".[' in output


@pytest.mark.few(1)
@pytest.mark.parametrize("data", WRONG_FILES.values(), ids=WRONG_FILES)
@pytest.mark.parametrize("call", list(CALLS.values())[1:], ids=list(CALLS)[1:])
def test_a_wrong_onnx_file_is_told_as_such_without_the_package_too(call, data, tmp_path):
    if data is not None:
        (tmp_path / "small.onnx").write_bytes(data)
    output = output_of(call, tmp_path)
    assert output.startswith("FileError small.onnx")
