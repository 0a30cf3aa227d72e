"""The home's page at the HTTP entrance: for whoever has its address, encrypted where the entrance
is, and to look at only.
"""

import http.client
import shutil
import ssl
import struct
import subprocess
from contextlib import contextmanager

import pytest

from potluck.display.cockpit.frames import FrameReader
from potluck.testing.memory import memory_home

pytest.importorskip("potluck.serve.gateway.server")
LENGTH = struct.Struct("<I")
TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def home():
    with memory_home(2) as made:
        yield made


def certified(folder):
    """A certificate for this computer, and its key, as a person makes them."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl is installed: apt-get install openssl")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


@contextmanager
def answer_of(gateway, path, certificate=None, method="GET"):
    if certificate is None:
        connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=TIMEOUT_S)
    else:
        trusting = ssl.create_default_context(cafile=str(certificate))
        connection = http.client.HTTPSConnection(
            "127.0.0.1", gateway.port, timeout=TIMEOUT_S, context=trusting
        )
    try:
        connection.request(method, path)
        yield connection.getresponse()
    finally:
        connection.close()


def path_of(gateway):
    return gateway.watch_url.removeprefix(gateway.url)


@pytest.mark.long
def test_the_page_its_script_and_live_frames_come_over_tls(home, tmp_path):
    certificate, key = certified(tmp_path)
    with home.gateway(certificate=certificate, key=key, token="t0k", watch=True) as gateway:
        assert gateway.watch_url.startswith("https://127.0.0.1:")
        path = path_of(gateway)
        with answer_of(gateway, path, certificate) as answer:
            assert answer.status == 200
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
            assert b"start.js" in answer.read()
        with answer_of(gateway, path + "start.js", certificate) as answer:
            assert b"to look at only" in answer.read()
        with answer_of(gateway, path + "frames", certificate) as answer:
            reader = FrameReader()
            while len(reader.sections.get("devices", {})) < 2:
                (n_bytes,) = LENGTH.unpack(answer.read(LENGTH.size))
                reader.take(answer.read(n_bytes))
        assert sorted(reader.sections["devices"]) == sorted(home.devices)


def test_without_its_token_nothing_is_served_and_clicks_are_not_heard(home):
    with home.gateway(watch=True) as gateway:
        path = path_of(gateway)
        for other in ("/watch/", "/watch/guess/", "/watch/guess/frames", path + "../../secret"):
            with answer_of(gateway, other) as answer:
                assert answer.status == 404, other
        for asked_for in (path, path + "ask"):
            with answer_of(gateway, asked_for, method="POST") as answer:
                assert answer.status in (404, 405)


def test_an_entrance_without_it_has_no_page(home):
    with home.gateway() as gateway:
        assert gateway.watch_url == ""
        with answer_of(gateway, "/watch/guess/") as answer:
            assert answer.status == 404


def test_who_still_looks_when_the_entrance_closes_is_told_that_it_ends(home):
    gateway = home.gateway(watch=True)
    with answer_of(gateway, path_of(gateway) + "frames") as answer:
        (n_bytes,) = LENGTH.unpack(answer.read(LENGTH.size))
        answer.read(n_bytes)
        gateway.close()
        rest = answer.read()  # to its end
    assert isinstance(rest, bytes)
    with pytest.raises(ConnectionRefusedError), answer_of(gateway, "/"):
        pass
