"""Each line that guards something is taken away, and tests must notice (S11).

A guard that no test would miss may be gone already.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = ROOT / "device_agent"


@dataclass(frozen=True)
class Mutation:
    """`line` of `file` becomes `changed`; then one of `tests` has to fail."""

    file: str
    line: str
    changed: str
    tests: tuple[str, ...]


def text_of(file):
    return (CODE / file).read_text()


SOCKETS, PROCESS = "tests/agent/net/test_server_sockets.py", "tests/agent/test_agent_process.py"
DOCUMENTS, INTERPRETER = (
    "tests/agent/worker/test_graph_documents.py",
    "tests/agent/worker/test_interpreter.py",
)
FRAMES, OPERATORS = "tests/wire/test_frames.py", "tests/security/test_operators.py"
DEFENCE = "tests/agent/test_defence.py"
KEPT_FILES = "tests/agent/net/test_kept_files.py"
WIRE = "potluck_wire/"
AGENT = "potluck_agent/"
WORKER = "potluck_agent/worker/"
RELAY, LYING = "tests/agent/relay/test_relay.py", "tests/agent/relay/test_lying_relays.py"
MUTATIONS: dict[str, Mutation] = {}


def guard(name, file, line, changed, *tests):
    MUTATIONS[name] = Mutation(file, line, changed, tests)


guard(
    "the domain is enforced",
    AGENT + "net/server_sockets.py",
    "router.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)",
    "router.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 0)",
    SOCKETS,
    PROCESS,
)
guard(
    "the domain is not empty",
    AGENT + "net/server_sockets.py",
    "router.zap_domain = ZAP_DOMAIN.encode()",
    'router.zap_domain = b""',
    SOCKETS,
    PROCESS,
)
guard(
    "a worker signals nobody else",
    WORKER + "sandbox.py",
    "refused = seccomp.refuse(os.getpid(), opens_devices=opens_devices, has_driver=any(uses))",
    'refused = "refused, but to itself"',
    "tests/agent/worker/test_seccomp.py",
)
guard(
    "kept weights are what was offered",
    AGENT + "net/kept_files.py",
    "is_sound = summed.digest() == order.content",
    "is_sound = True",
    KEPT_FILES,
)
guard(
    "weights are kept under their own content",
    AGENT + "net/kept_files.py",
    "if summed.digest() == order.content:",
    "if True:",
    KEPT_FILES,
)
guard(
    "kept weights are read through no link",
    AGENT + "net/kept_files.py",
    'flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0)',
    "flags = os.O_RDONLY",
    KEPT_FILES,
)
guard(
    "a notebook offers to its own runs",
    AGENT + "core/value_exchange.py",
    "if workspace is None or workspace.key != key:",
    "if workspace is None:",
    "tests/agent/core/test_kept_weights.py",
)
guard(
    "a notebook finds its own kept weights",
    AGENT + "core/weight_cache.py",
    "entry = self._entries(owner).get(content)\n        if entry is None or not entry.is_whole:",
    "entry = next((e[content] for e in self._of.values() if content in e), None)\n"
    "        if entry is None or not entry.is_whole:",
    "tests/agent/core/test_kept_weights.py",
)
guard(
    "what waits for the worker is bounded",
    AGENT + "core/worker_proxy.py",
    "if not behind_bytes or behind_bytes + nbytes <= MAX_BEHIND_BYTES:",
    "if True:",
    "tests/agent/core/test_core_limits.py",
)
guard(
    "sockets are encrypted",
    AGENT + "net/server_sockets.py",
    "router.curve_server = True",
    "router.curve_server = False",
    SOCKETS,
)
guard(
    "frames have a largest size",
    AGENT + "net/server_sockets.py",
    "router.maxmsgsize = MAX_FRAME_BYTES",
    "router.maxmsgsize = -1",
    "tests/security/test_strangers.py",
)
guard(
    "handshakes end",
    AGENT + "net/server_sockets.py",
    "router.handshake_ivl = int(HANDSHAKE_S * 1000)",
    "router.handshake_ivl = 0",
    "tests/security/test_strangers.py",
)
guard(
    "the list of those who are trusted",
    AGENT + "net/server_sockets.py",
    "        if admits(key):",
    "        if True:",
    SOCKETS,
)
guard(
    "the mechanism is asked for",
    AGENT + "net/server_sockets.py",
    'mechanism != b"CURVE"',
    "False",
    SOCKETS,
)
guard(
    "the authenticator fails closed",
    AGENT + "net/server_sockets.py",
    '    except Exception:\n        return [b"1.0", request, b"500"',
    '    except MemoryError:\n        return [b"1.0", request, b"500"',
    SOCKETS,
)
guard(
    "a libzmq that cannot encrypt",
    AGENT + "net/server_sockets.py",
    'if not zmq.has("curve"):',
    "if False:",
    SOCKETS,
)
guard(
    "an old libzmq",
    AGENT + "net/server_sockets.py",
    "if zmq.zmq_version_info() < OLDEST_ZMQ:",
    "if False:",
    SOCKETS,
)
guard(
    "a relay lets in who was invited",
    AGENT + "relay/server.py",
    "zap_reply(frames, self._devices.__contains__)",
    "zap_reply(frames, lambda key: True)",
    RELAY,
)
guard(
    "a relay is encrypted",
    AGENT + "relay/server.py",
    "router.curve_server = True",
    "router.curve_server = False",
    RELAY,
)
guard(
    "a relay passes on handshakes alone",
    AGENT + "relay/handshake.py",
    "    if not sound:",
    "    if False:",
    "tests/agent/relay/test_handshake.py",
)
guard(
    "a relay says who may visit a device no longer",
    AGENT + "relay/server.py",
    "if key not in self._devices:\n",
    "if False:\n",
    RELAY,
)
guard(
    "those that wait at a relay are counted",
    AGENT + "relay/visits.py",
    "fits = len(self._pending) <= RELAY_MAX_PENDING and most <= RELAY_MAX_PENDING_EACH",
    "fits = True",
    "tests/agent/relay/test_visits.py",
)
guard(
    "a relay asks for the agent's ports alone",
    AGENT + "relay/tunnel.py",
    "if message.offset >= N_PORTS or ",
    "if ",
    LYING,
)
guard(
    "a relay asks for so many connections",
    AGENT + "relay/tunnel.py",
    "len(self._joined) < MAX_JOINED",
    "True",
    LYING,
)
guard(
    "the notebook's proof of the code",
    WIRE + "pairing.py",
    'hmac.compare_digest(message.mac, self._mac(b"confirm A"))',
    "True",
    "tests/agent/core/test_pairing_window.py",
)
guard(
    "the device's proof of the code",
    WIRE + "pairing.py",
    'hmac.compare_digest(message.mac, self._mac(b"confirm B"))',
    "True",
    "tests/agent/core/test_pairing_window.py",
)
guard(
    "three tries",
    AGENT + "core/pairing_window.py",
    "left = self._tries_left = self._tries_left - 1",
    "left = self._tries_left = self._tries_left - 0",
    "tests/agent/core/test_pairing_window.py",
)
guard(
    "the size of a header",
    WIRE + "frames.py",
    """    if len(header) > header_cap(channel):
        raise""",
    """    if False:
        raise""",
    FRAMES,
)
guard(
    "the channel of a message",
    WIRE + "frames.py",
    "if entry.channel is not channel:",
    "if False:",
    FRAMES,
)
guard(
    "unknown fields",
    WIRE + "schema.py",
    "if name in values or name not in known:",
    "if name not in known: continue\n                if False:",
    FRAMES,
)
guard(
    "the range of integers",
    WIRE + "checks.py",
    "if type(value) is not int or not low <= value <= high:",
    "if type(value) is not int:",
    FRAMES,
    "tests/security/test_attacks.py",
)
guard(
    "finite numbers",
    WIRE + "checks.py",
    "if type(value) is not float or not -MAX_INT <= value <= MAX_INT:",
    "if type(value) is not float:",
    FRAMES,
)
guard(
    "the product of a shape",
    WIRE + "tensors.py",
    "if total * max(size, 1) > MAX_INT:",
    "if False:",
    "tests/wire/test_tensors.py",
)
guard(
    "the list of operators",
    WIRE + "graph.py",
    "if node.op not in OPERATORS:",
    "if False:",
    DOCUMENTS,
)
guard(
    "references to what is not there",
    WIRE + "graph.py",
    "if ref.value >= first + position:",
    "if False:",
    DOCUMENTS,
)
guard(
    "what may be changed in place",
    WIRE + "graph.py",
    "if not (isinstance(target, Ref) and first_buffer <= target.value < first):",
    "if False:",
    DOCUMENTS,
)
guard(
    "the size of a graph",
    WIRE + "segment.py",
    "if len(data) > MAX_DOCUMENT_BYTES:",
    "if False:",
    DOCUMENTS,
)
guard(
    "huge sizes beside a zero",
    WIRE + "segment.py",
    "math.prod(max(size, 1) for size in sizes)",
    "math.prod(size for size in sizes)",
    DOCUMENTS,
)
guard(
    "the kinds of arguments",
    WORKER + "interpreter.py",
    "            check(node)\n",
    "            pass\n",
    INTERPRETER,
)
guard(
    "every call is tried first",
    WORKER + "interpreter.py",
    "                        admit(self._node(step).op, args, step.named)\n",
    "                        pass\n",
    INTERPRETER,
)
guard(
    "the sizes of a target",
    WORKER + "bounds_checks.py",
    '    _expect("the target", target, x.shape, x)\n',
    "",
    OPERATORS,
)
guard(
    "the sizes of recurrent weights",
    WORKER + "bounds_checks.py",
    '_expect(f"a weight of cell {i}", weight, shape, x)',
    "pass",
    OPERATORS,
)
guard(
    "the sizes of recurrent states",
    WORKER + "bounds_checks.py",
    '_expect("a state", state, (n_layers * n_ways, rows, width), x)',
    "pass",
    OPERATORS,
)
guard(
    "the memory of a result",
    WORKER + "admission.py",
    '    available_memory.require(needed_bytes, "its result")\n',
    "",
    INTERPRETER,
)
guard(
    "the memory of parameters",
    WORKER + "training.py",
    "    available_memory.require("
    "available_memory.bytes_of(shape, DTYPE_BYTES[dtype], name), name)\n",
    "",
    INTERPRETER,
)
guard(
    "files beside an ONNX model",
    WORKER + "onnx/validator.py",
    "if tensor.data_location != onnx.TensorProto.DEFAULT or tensor.external_data:",
    "if False:",
    "tests/sdk/graph/onnx/test_onnx_files.py",
)
guard(
    "no file is written",
    WORKER + "sandbox.py",
    "    limit(resource.RLIMIT_FSIZE, 0)\n",
    "",
    "tests/agent/worker/test_sandbox.py",
)
guard(
    "no file is opened for writing",
    WORKER + "seccomp.py",
    'BITS = {"open": (1, 0x243), "openat": (2, 0x243)}',
    "BITS = {}",
    "tests/agent/worker/test_files_of_others.py",
)
guard(
    "no memory is taken that no limit counts",
    WORKER + "seccomp.py",
    "_GROWS if has_driver else _GROWS | _SHARED",
    "0",
    "tests/agent/worker/test_seccomp.py",
)
guard(
    "a worker has read what it answers",
    AGENT + "net/worker_supervisor.py",
    "if messages and worker.unsent_bytes > MOST_UNSENT_BYTES:",
    "if False:",
    "tests/agent/net/test_ending_workers.py",
)
guard(
    "no window is open that nobody knows of",
    AGENT + "control_files.py",
    "    _remove(state, *ASKED)\n",
    "",
    "tests/agent/test_keys.py",
)
guard(
    "who was forgotten while the disk was full",
    AGENT + "keys.py",
    "if not is_there(_mark(state, peer))",
    "if True",
    "tests/agent/test_keys.py",
)
guard(
    "files of people are not read",
    WORKER + "sandbox.py",
    "if not landlock.restrict(nodes, landlock.facts_of(uses)):",
    "if False:",
    "tests/agent/worker/test_files_of_others.py",
)
guard(
    "weights of another kind of segment",
    WORKER + "loading.py",
    'if getattr(weight_source, "kind", "aten") != kind:',
    "if False:",
    "tests/security/test_borrowing.py",
)
guard(
    "the frames of a message",
    WIRE + "bounded_receive.py",
    "if len(frames) > self._most_frames or n_bytes > MAX_MESSAGE_BYTES + MAX_FRAME_BYTES:",
    "if False:",
    "tests/wire/test_bounded_receive.py",
)
guard(
    "what waits of a connection",
    AGENT + "net/socket_memory.py",
    "if total_bytes <= most_bytes:",
    "if True:",
    "tests/agent/net/test_socket_memory.py",
    "tests/security/test_strangers.py",
)
guard(
    "the smallest chunks",
    WIRE + "chunks.py",
    "if not least_bytes <= value.chunk_bytes <= MAX_CHUNK_BYTES:",
    "if not 1 <= value.chunk_bytes <= MAX_CHUNK_BYTES:",
    "tests/wire/test_chunks.py",
)
guard(
    "what a recording may hold",
    AGENT + "core/recorded_entries.py",
    "        check(entry)\n",
    "",
    "tests/agent/test_hostile_recordings.py",
)
guard(
    "memory is limited",
    WORKER + "sandbox.py",
    "    limit(resource.RLIMIT_DATA, data_bytes + memory_bytes + OWN_BYTES)\n",
    "",
    "tests/agent/worker/test_sandbox.py",
)
guard(
    "the network is cut off",
    WORKER + "sandbox.py",
    "if libc.unshare(flags) == 0:",
    "if True:",
    "tests/agent/worker/test_sandbox.py",
)
guard(
    "the environment is left behind",
    WORKER + "launch.py",
    "env=worker_environment(threads),",
    "env=dict(os.environ),",
    "tests/agent/worker/test_sandbox.py",
)
guard(
    "older epochs",
    AGENT + "core/epochs.py",
    """            raise Unwanted(RefusalCode.OLD_EPOCH, f"epoch {run.committed} is in force")""",
    "            pass",
    "tests/agent/core/test_core_work.py",
    "tests/agent/core/test_core_sessions.py",
)
SHARING = "tests/agent/core/test_sharing.py"
guard(
    "another notebook's name of a run is not taken",
    AGENT + "core/epochs.py",
    "if self._others.know(message.run):",
    "if False:",
    SHARING,
)
guard(
    "what another notebook claims is not claimed twice",
    AGENT + "core/epochs.py",
    "left_bytes = self._settings.memory_bytes - self._others.claimed_bytes",
    "left_bytes = self._settings.memory_bytes",
    SHARING,
)
guard(
    "each notebook has a window of its own",
    AGENT + "core/send_queue.py",
    "return self.owner, self.key",
    'return "", self.key',
    "tests/agent/core/test_lanes.py",
)
GRANTS = "tests/agent/core/test_core_grants.py"
ASKS = AGENT + "core/asks.py"
guard(
    "a service is asked for by who was granted it",
    ASKS,
    "if name != HOME and (peer is None or not peer.asks_per_s):",
    "if name != HOME and peer is None:",
    GRANTS,
)
guard(
    "no more often than granted",
    ASKS,
    "if name != HOME and peer is not None and not peer.takes(grant.work(ask.rows), now_s):",
    "if False:",
    GRANTS,
)
guard("of rows that are granted", ASKS, "if ask.rows not in grant.programs:", "if False:", GRANTS)
guard("a path ends with who asks", ASKS, "if path[-1:] != (", "if False and (", GRANTS)
guard("nothing goes round", ASKS, "if self._name in path:", "if False:", GRANTS)
AGAIN = "if ask.number <= self._latest.get(sender.key, 0):"
guard("no request is done again", ASKS, AGAIN, "if False:", GRANTS)
guard("inputs are those of the grant", ASKS, "if wanted != got:", "if False:", GRANTS)
guard(
    "what is revoked ends", ASKS, "if not self._may_go_on(own, each, now_s):", "if False:", GRANTS
)
guard(
    "a grant has an end",
    AGENT + "core/grants.py",
    "return self.peers.get(name) if now_s < self.until_s else None",
    "return self.peers.get(name)",
    GRANTS,
)
guard(
    "a granted program only answers",
    AGENT + "core/grants.py",
    "is_plain = each.op in HARMLESS and",
    "is_plain =",
    GRANTS,
)
guard(
    "what a worker says that it holds gives it no more",
    AGENT + "core/worker_proxy.py",
    "min(message.memory_bytes, self.limit_bytes)",
    "message.memory_bytes",
    "tests/agent/core/test_sharing.py",
)
guard(
    "no task took longer than since it was told",
    AGENT + "core/worker_proxy.py",
    "start_s = max(message.start_s, self._owes_s)",
    "start_s = message.start_s",
    "tests/agent/core/test_core_worker.py",
)
guard(
    "reports of faults keep no bytes of others",
    AGENT + "core/machine.py",
    "self._latest.append(fault_log.remembered(now_s, event))",
    'self._latest.append((now_s, "", event))',
    "tests/agent/test_defence.py",
)
guard(
    "a slot of an optimizer is counted first",
    WORKER + "optimizers.py",
    "available_memory.require(math.prod(shape) * parameter.element_size(), slot)",
    "pass",
    "tests/agent/worker/test_available_memory.py",
)
guard(
    "a relay names ports that there are",
    AGENT + "relay/tunnel.py",
    "is_possible = message.port <= LAST_PORT",
    "is_possible = True",
    LYING,
)
guard(
    "a worker does not raise its limits",
    WORKER + "seccomp.py",
    'SETS = {"prlimit64": 2}',
    "SETS = {}",
    "tests/agent/worker/test_seccomp.py",
)
guard(
    "a relay takes so many of one address in a second",
    AGENT + "relay/listener.py",
    "if self._arrivals.admit(came_from, time.monotonic()):",
    "if True:",
    "tests/agent/relay/test_listener.py",
)
guard(
    "workers together have what the owner allows",
    AGENT + "net/worker_pool.py",
    "if not self._ending or now_s - asked_s > MOST_WAIT_S:",
    "if True:",
    "tests/agent/net/test_ending_workers.py",
)
guard(
    "what a notebook left to do costs that one alone",
    AGENT + "core/machine.py",
    "self.fault(own, error)\n                self._give_up_notebook(own.key, error, now_s)",
    "raise",
    DEFENCE,
)
guard(
    "a member costs the steps of its homes alone",
    AGENT + "core/machine.py",
    "if any(member.key == key for member in self._members(own.key).values()):",
    "if True:",
    DEFENCE,
)
guard(
    "an order without an end costs its worker",
    AGENT + "core/blame.py",
    "case FromWorker() | WorkerDied() | FromDisk():",
    "case FromWorker() | WorkerDied():",
    DEFENCE,
)
guard(
    "what raises between events ends no agent",
    AGENT + "net/event_loop.py",
    "self._perform(self._core.survive(Tick(), error, time.monotonic()))",
    "raise",
    "tests/agent/net/test_loop_errors.py",
)
guard(
    "steps of requests are no notebook's",
    AGENT + "core/machine.py",
    "case Execute() | Abort() if message.step >= ASKED_STEP:",
    "case Execute() | Abort() if False:",
    "tests/agent/core/test_steps_of_requests.py",
)
guard(
    "a worker fails by causes of tasks",
    WIRE + "replies.py",
    "if reply.cause not in TASK_CAUSES:",
    "if False:",
    "tests/agent/core/test_core_worker.py",
)
guard(
    "other addresses of a device are tried",
    AGENT + "net/peer_connections.py",
    "if link.broken or (is_late and link.member.others):",
    "if link.broken:",
    "tests/agent/net/test_peer_connections.py",
)
guard(
    "members that find no connection are refused",
    AGENT + "core/rosters.py",
    "crowded = crowded_out(self._sessions, key, owners, askers, self.members, most)",
    'crowded = ""',
    "tests/agent/core/test_core_members.py",
)


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The device's packages, to be changed."""
    folder = tmp_path_factory.mktemp("mutated")
    for package in ("potluck_agent", "potluck_wire"):
        shutil.copytree(
            CODE / package, folder / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    return folder


def outcome(folder, tests, marked="not long"):
    """How those of these tests that are marked so end with the packages of `folder`."""
    path = [str(folder), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-m",
        marked,
        "-p",
        "no:cacheprovider",
        "-k",
        WANTED,
        *tests,
    ]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout[-2000:]


WANTED = "not no_call_crashes and not killing_the_agent"  # which take long and guard none of these


def test_every_guard_is_where_it_is_looked_for():
    for name, mutation in MUTATIONS.items():
        assert text_of(mutation.file).count(mutation.line) == 1, name
        assert mutation.line != mutation.changed
        assert all((ROOT / test).exists() for test in mutation.tests), name


@pytest.mark.long
def test_s11_the_tests_pass_with_every_guard(copy):
    code, text = outcome(
        copy, sorted({test for mutation in MUTATIONS.values() for test in mutation.tests})
    )
    assert code == 0, text


@pytest.mark.long
@pytest.mark.parametrize("name", MUTATIONS)
def test_s11_a_guard_that_is_gone_is_missed(name, copy, record_property):
    mutation = MUTATIONS[name]
    file = copy / mutation.file
    original = file.read_text()
    file.write_text(original.replace(mutation.line, mutation.changed))
    try:
        code, text = outcome(copy, mutation.tests)
        if code == 0:
            code, text = outcome(copy, mutation.tests, "long")
    finally:
        file.write_text(original)
    assert code == 1, f"nobody misses it: {text}"
    record_property("inputs", 1)
