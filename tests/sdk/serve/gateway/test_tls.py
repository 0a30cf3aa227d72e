"""The entrance with a certificate, asked by real clients: who trusts it is served, and nobody else
learns or stops anything.
"""

import gc
import http.client
import json
import socket
import ssl
import struct
import subprocess
import urllib.request
from asyncio import sslproto
from contextlib import ExitStack, suppress

import pytest
from tests.sdk.serve.gateway.test_gateway import rows
from tests.sdk.serve.gateway.test_page import certified
from tests.timeouts import TIMEOUT_S

import potluck
from potluck.errors import FileError, HomeError, UserError
from potluck.serve.gateway import listener
from potluck.testing.memory import memory_home

torch = pytest.importorskip("torch")
triton = pytest.importorskip("tritonclient.http")
Gateway = pytest.importorskip("potluck.serve.gateway.server").Gateway
LONG_S = 120.0
TOKEN = "t0ken"
HELD = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 4))


@pytest.fixture(scope="module")
def entrance(net, tmp_path_factory):
    """A gateway, its certificate, and another certificate."""
    torch.set_num_threads(1)
    folders = [tmp_path_factory.mktemp(name) for name in ("own", "foreign")]
    (certificate, key), (foreign, _) = [certified(folder) for folder in folders]
    model = potluck.Model.from_torch(net, torch.randn(6, 8))
    with memory_home(1) as home:
        home.serve(model, "birds", slo=potluck.Latency(LONG_S)).wait()
        with home.gateway(certificate=certificate, key=key, token=TOKEN) as gateway:
            yield gateway, certificate, foreign


def with_pass_phrase(folder):
    """A key that asks for one."""
    path = folder / "locked.pem"
    command = ["openssl", "genrsa", "-aes256", "-passout", "pass:phrase", "-out", str(path)]
    subprocess.run(command, check=True, capture_output=True)
    return path


def test_files_that_no_server_can_show_are_named_and_nobody_is_asked_for_a_pass_phrase(tmp_path):
    (tmp_path / "other").mkdir()
    (certificate, key), (_, foreign) = certified(tmp_path), certified(tmp_path / "other")
    locked, missing = with_pass_phrase(tmp_path), tmp_path / "missing.pem"
    for files in [(certificate, foreign), (certificate, locked), (missing, key), (key, None)]:
        with pytest.raises(FileError, match="cannot be used") as caught:
            Gateway(dict, certificate=files[0], key=files[1])
        assert all(str(path) in str(caught.value) for path in files if path is not None)
    with pytest.raises(UserError, match="without a certificate"):
        Gateway(dict, key=key)


def test_an_address_of_ipv6_stands_in_brackets():
    try:
        opened = Gateway(dict, host="::1")
    except HomeError:
        pytest.skip("there is no IPv6 here")
    with opened:
        assert opened.url == f"http://[::1]:{opened.port}"
        with urllib.request.urlopen(f"{opened.url}/v2", timeout=TIMEOUT_S) as answer:
            assert answer.status == 200


def triton_client(gateway, trusted):
    return triton.InferenceServerClient(
        f"127.0.0.1:{gateway.port}",
        ssl=True,
        ssl_context_factory=lambda: ssl.create_default_context(cafile=str(trusted)),
        connection_timeout=TIMEOUT_S,
        network_timeout=TIMEOUT_S,
    )


def answered(entrance, net):
    """Whether a client that trusts the certificate gets what the module answers."""
    gateway, certificate, _ = entrance
    client = triton_client(gateway, certificate)
    try:
        x = rows(3)
        given = triton.InferInput("input", [3, 8], "FP32")
        given.set_data_from_numpy(x)
        name = client.get_model_metadata("birds", headers=HELD)["outputs"][0]["name"]
        found = client.infer("birds", [given], headers=HELD).as_numpy(name)
    finally:
        client.close()
    with torch.no_grad():
        expected = net(torch.from_numpy(x)).numpy()
    return abs(found - expected).max() < 1e-6


def test_tritons_client_is_served_by_its_certificate(entrance, net):
    assert entrance[0].url.startswith("https://")
    assert answered(entrance, net)


def test_a_client_that_trusts_another_certificate_says_nothing(entrance, net):
    gateway, _, foreign = entrance
    client = triton_client(gateway, foreign)
    with pytest.raises(ssl.SSLCertVerificationError):
        client.is_server_live(headers=HELD)
    client.close()
    assert answered(entrance, net)


def test_without_the_token_a_trusted_connection_gets_nothing(entrance):
    gateway, certificate, _ = entrance
    trusting = ssl.create_default_context(cafile=str(certificate))
    connection = http.client.HTTPSConnection(
        "127.0.0.1", gateway.port, timeout=TIMEOUT_S, context=trusting
    )
    connection.request("GET", "/v2/models/birds")
    answer = connection.getresponse()
    assert (answer.status, "error" in json.loads(answer.read())) == (401, True)
    connection.close()


STRANGERS = {
    "plain": b"GET /v2 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "half a hello": b"\x16\x03\x01\x02\x00\x01\x00",
    "noise": bytes(range(256)) * 8,
    "nothing": b"",
}


@pytest.mark.parametrize("sent", STRANGERS.values(), ids=STRANGERS)
def test_what_is_no_handshake_is_told_nothing_and_keeps_nobody_waiting(entrance, net, sent):
    gateway = entrance[0]
    with socket.create_connection(("127.0.0.1", gateway.port), TIMEOUT_S) as stranger:
        stranger.sendall(sent)
        assert answered(entrance, net)  # meanwhile
        stranger.shutdown(socket.SHUT_WR)
        received = b""
        try:
            while part := stranger.recv(4096):
                received += part
        except ConnectionError:
            pass
        assert b"HTTP" not in received
        assert b"potluck" not in received


@pytest.mark.parametrize("sent", STRANGERS.values(), ids=STRANGERS)
def test_handshakes_that_fail_take_bounded_memory(tmp_path, monkeypatch, sent):
    """Also where Python hardly ever looks at its oldest objects, as there are millions of them."""
    monkeypatch.setattr(listener, "MAX_MUTE", 8)
    certificate, key = certified(tmp_path)
    with Gateway(dict, token=TOKEN, certificate=certificate, key=key) as gateway:
        gc.collect()
        n_before = n_handshakes()
        gc.disable()
        try:
            for _ in range(40):
                with socket.create_connection(("127.0.0.1", gateway.port), TIMEOUT_S) as stranger:
                    stranger.sendall(sent)
                    stranger.shutdown(socket.SHUT_WR)
                    with suppress(ConnectionError):
                        while stranger.recv(4096):
                            pass
            assert n_handshakes() - n_before <= 2 * 8
        finally:
            gc.enable()


@pytest.mark.parametrize("is_reset", [False, True])
def test_a_connection_that_breaks_after_its_answer_is_forgotten_at_once(tmp_path, is_reset):
    """Each was kept for the seconds in which it might have asked again: hundreds of MB."""
    certificate, key = certified(tmp_path)
    trusting = ssl.create_default_context(cafile=str(certificate))
    with Gateway(dict, token=TOKEN, certificate=certificate, key=key) as gateway:
        gc.collect()
        n_before = n_handshakes()
        gc.disable()
        try:
            for _ in range(20):
                address = ("127.0.0.1", gateway.port)
                client = http.client.HTTPSConnection(*address, timeout=TIMEOUT_S, context=trusting)
                client.request("GET", "/v2")
                assert client.getresponse().read()
                if is_reset:
                    client.sock.setsockopt(
                        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                    )
                client.close()
            assert n_handshakes() - n_before <= 2  # the last one may not have ended yet
        finally:
            gc.enable()


def n_handshakes():
    """What asyncio keeps of TLS: a buffer of 256 KiB each."""
    return sum(type(each) is sslproto.SSLProtocol for each in gc.get_objects())


def test_an_entrance_that_is_closed_ends_handshakes_without_a_word(tmp_path, capsys):
    """Hundreds of half ones filled the terminal with tasks that were destroyed."""
    certificate, key = certified(tmp_path)
    with ExitStack() as stack:
        with Gateway(dict, token=TOKEN, certificate=certificate, key=key) as gateway:
            for _ in range(9):
                address = ("127.0.0.1", gateway.port)
                stranger = stack.enter_context(socket.create_connection(address, TIMEOUT_S))
                stranger.sendall(STRANGERS["half a hello"])
            trusting = ssl.create_default_context(cafile=str(certificate))
            last = http.client.HTTPSConnection(*address, timeout=TIMEOUT_S, context=trusting)
            last.request("GET", "/v2")
            assert last.getresponse().status == 401  # so all others are in
            last.close()
        gc.collect()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
def test_an_old_version_of_tls_is_refused(entrance, version):
    gateway, certificate, _ = entrance
    old = ssl.create_default_context(cafile=str(certificate))
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        old.minimum_version = old.maximum_version = version
    with (
        socket.create_connection(("127.0.0.1", gateway.port), TIMEOUT_S) as plain,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        old.wrap_socket(plain, server_hostname="127.0.0.1")
