"""Many values one after the other through one agent and its worker: memory and files stay as they
were (L1).
"""

import os

import psutil
import pytest
from tests.agent.agents import Keys, RawPeer, agent
from tests.agent.core.core_driver import plan, recv, send
from tests.agent.test_agent_process import take, value

from potluck_wire.limits import CHUNK_BYTES
from potluck_wire.messages import Execute, Hello, Prepare, Prepared, Welcome

pytest.importorskip("torch")
ADA = Keys()
MIB = 1 << 20
STREAMS, WARM = 4, 40


def memory_bytes(process):
    return sum(one.memory_info().rss for one in (process, *process.children()))


@pytest.mark.parametrize("n_values", [200, pytest.param(40_000, marks=pytest.mark.long)])
def test_l1_memory_stays_flat_under_load(tmp_path, n_values, record_property):
    with agent(tmp_path / "jetson", "--trust", f"{ADA.public}:ada", "--memory", "64Mi") as jetson:
        process = psutil.Process(jetson.process.pid)
        with RawPeer(jetson.port, jetson.key, ADA) as ada:
            assert isinstance(ada.ask(Hello(major=1, name="ada")), Welcome)
            assert isinstance(
                ada.ask(Prepare(run="r", epoch=1), *plan(recv("x"), send("x"))), Prepared
            )
            before, n_files = 0, 0
            for step in range(n_values):
                data = os.urandom(CHUNK_BYTES)
                ada.say(Execute(run="r", epoch=1, program="p", step=step))
                ada.say(value("x", data, transfer=step + 1, step=step), data)
                assert take(ada) == ("x", data)
                ada.receive()  # Done
                if step == WARM:
                    before, n_files = memory_bytes(process), process.num_fds()
            assert memory_bytes(process) < before + 24 * MIB
            assert process.num_fds() == n_files
    record_property("inputs", n_values)
