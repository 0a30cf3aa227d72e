"""`potluck serve`: answers requests to models of files over HTTP; `serve top` watches."""

import argparse
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potluck.commands.options import is_port
from potluck.errors import UserError
from potluck.serve.runtime.argument_checks import check_service_name

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

HTTP = "127.0.0.1:8080"
LOOK_S, ANSWER_S = 1.0, 5.0
_ENDING = (signal.SIGINT, signal.SIGTERM)
TOKEN = "POTLUCK_SERVE_TOKEN"  # noqa: S105 - the name of a variable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is served, within which limit, where, and on which devices."""
    parser.add_argument(
        "what", nargs="?", choices=["top"], help="top: watch the entrance at --http instead"
    )
    parser.add_argument(
        "--http", metavar="HOST:PORT", help=f"listen there, such as {HTTP}; without it nothing is"
    )
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="an ONNX file, or one of Model.save; repeatable",
    )
    parser.add_argument(
        "--latency", type=float, default=1.0, metavar="S", help="limit of an answer (default: 1 s)"
    )
    parser.add_argument(
        "--local", type=int, metavar="N", help="on N agents of this machine, started for it"
    )
    parser.add_argument("--state", metavar="FOLDER", help="keys and devices of this computer")
    parser.add_argument("--certificate", metavar="PEM", help="for HTTPS")
    parser.add_argument("--key", metavar="PEM", help="for HTTPS")
    parser.add_argument(
        "--traces",
        action="store_true",
        help="send OpenTelemetry's spans by OTLP, as OTEL_EXPORTER_OTLP_ENDPOINT and the like say",
    )
    parser.add_argument("--once", action="store_true", help="top: one look, then end")


def main(args: argparse.Namespace) -> int:
    """Serve until it is interrupted, or watch."""
    if args.what == "top":
        return _top(args.http or HTTP, once=args.once)
    return _serve(args)


def _serve(args: argparse.Namespace) -> int:
    import os

    from potluck.home import Home
    from potluck.serve.gateway.server import check_certificate, check_entrance
    from potluck.serve.scheduling.records import Latency

    if not args.http:
        raise UserError("no entrance is asked for.", next_step=f"potluck serve --http {HTTP} ...")
    host, port = _place(args.http)
    limit, token = Latency(args.latency), os.environ.get(TOKEN, "")
    check_entrance(host, token)
    check_certificate(args.certificate, args.key)
    models = {name: _model(path) for name, path in _files(args.model).items()}
    traces: TracerProvider | None = None
    if args.traces:
        from potluck.serve.gateway.traces import exporting

        traces = exporting()
    for number in _ENDING:
        signal.signal(number, _interrupt)
    is_local = args.local is not None
    home: Home = Home.local(args.local) if is_local else Home.discover(state=args.state)
    with home:
        for name, model in models.items():
            service = home.serve(model, name, slo=limit).wait()
            print(f"{name}: on {', '.join(service.devices)}", flush=True)
        gateway = home.gateway(
            host=host,
            port=port,
            token=token,
            certificate=args.certificate,
            key=args.key,
            tracer_provider=traces,
        )
        print(f"Serving at {gateway.url}", flush=True)
        with suppress(KeyboardInterrupt):
            threading.Event().wait()
    if traces is not None:
        traces.shutdown()
    return 0


def _interrupt(*_: object) -> None:
    """End what is under way, as a placement, by the first signal; more do not interrupt the end."""
    for number in _ENDING:
        signal.signal(number, lambda *_: None)
    raise KeyboardInterrupt


def _place(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not is_port(port):
        raise UserError(f"--http takes HOST:PORT, got {text!r}.", next_step=f"--http {HTTP}")
    return host.strip(" []") or "127.0.0.1", int(port)


def _files(given: list[str]) -> dict[str, Path]:
    """The files of models by the names of their services."""
    files: dict[str, Path] = {}
    for text in given:
        name, _, path = text.partition("=")
        if not path:
            raise UserError(
                f"--model takes NAME=FILE, got {text!r}.", next_step="--model birds=birds.onnx"
            )
        check_service_name(name)
        if name in files:
            raise UserError(
                f"two models are called {name!r}: {files[name]} and {path}.",
                next_step="Choose another name for one of them.",
            )
        files[name] = Path(path)
    if not files:
        raise UserError("there is nothing to serve.", next_step="--model birds=birds.onnx")
    return files


def _model(path: Path) -> Any:
    from potluck.graph import Model

    return Model.from_onnx(path) if path.suffix == ".onnx" else Model.load(path)


def _top(http: str, *, once: bool) -> int:
    from rich.console import Console
    from rich.live import Live

    from potluck.display.serving_table import serving_table

    before: dict[str, dict[str, float]] = {}
    host, port = _place(http)
    now = scraped(host, port)
    if once:
        Console().print(serving_table(now, before, LOOK_S))
        return 0
    with Live(serving_table(now, before, LOOK_S), auto_refresh=False) as live:
        while True:
            time.sleep(LOOK_S)
            before, now = now, scraped(host, port)
            live.update(serving_table(now, before, LOOK_S), refresh=True)


def scraped(host: str, port: int) -> dict[str, dict[str, float]]:
    """The page of metrics, read."""
    import http.client
    import os

    from potluck.display.http_deadline import within
    from potluck.display.serving_table import read_metrics

    connection = http.client.HTTPConnection(host, port, timeout=ANSWER_S)
    token = os.environ.get(TOKEN, "")
    try:
        connection.connect()
        with within(connection.sock, ANSWER_S):
            connection.request(
                "GET", "/metrics", headers={"Authorization": f"Bearer {token}"} if token else {}
            )
            response = connection.getresponse()
            page = response.read(2**20).decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        raise UserError(
            f"nobody serves at {host}:{port} ({error}).", next_step=f"potluck serve --http {HTTP}"
        ) from error
    finally:
        connection.close()
    if response.status != 200:
        raise UserError(
            f"{host}:{port} answers {response.status}.", next_step=f"Set {TOKEN} to its token."
        )
    return read_metrics(page)
