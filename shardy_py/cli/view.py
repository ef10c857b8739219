"""`shardy-py view`."""

from __future__ import annotations

import argparse
import http.server
import webbrowser
from pathlib import Path
from tempfile import TemporaryDirectory

from shardy_py.cli.errors import CommandError
from shardy_py.cli.options import TARGET, add_planning, output_file
from shardy_py.cli.output import Output
from shardy_py.cli.progress import progress
from shardy_py.cli.targets import plan_of

HOST = "127.0.0.1"


def add(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("target", metavar="TARGET", help=TARGET)
    parser.add_argument("--with", dest="other", metavar="TARGET", help="a plan to show beside it, with what differs marked")
    parser.add_argument("--hardware", metavar="NAME", help="show times and the memory there is on this hardware: h100, v5p, ...")
    parser.add_argument(
        "--output", "-o", type=output_file, metavar="FILE", help="write the page to a file and stop, in place of serving it"
    )
    parser.add_argument("--port", type=int, default=0, metavar="N", help=f"where {HOST} serves the page; by default any port that is free")
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser")
    parser.set_defaults(json=False, color="auto")
    add_planning(parser)


def run(options: argparse.Namespace, out: Output) -> int:
    """Writes the page, or serves it until one interrupts."""
    plan = plan_of(options.target, options)
    other = None if options.other is None else plan_of(options.other, options)
    if options.output:
        with progress(f"writing {options.output}"):
            plan.save_html(options.output, other, hardware=options.hardware)
        out.plain(options.output)
        return 0
    with TemporaryDirectory() as folder:
        file = Path(folder) / "plan.html"
        with progress("drawing the page"):
            plan.save_html(file, other, hardware=options.hardware)
        content = file.read_bytes()
    with server(content, options.port) as serving:
        url = f"http://{HOST}:{serving.server_address[1]}/"
        out.plain(f"{url}  (interrupt with Ctrl-C)")
        out.stream.flush()
        if not options.no_browser:
            webbrowser.open(url)
        try:
            serving.serve_forever()
        except KeyboardInterrupt:
            return 0
    return 0


def _is_local(host: str) -> bool:
    """Whether a Host header names this machine: an address of the loopback interface, or `localhost`, with any port."""
    return host.rpartition(":")[0] in (HOST, "localhost") or host in (HOST, "localhost")


def server(content: bytes, port: int) -> http.server.ThreadingHTTPServer:
    """A server of one page, for this machine only; port 0 is any. Raises CommandError if it cannot listen on the port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # A page of another site whose name resolves to this address (DNS rebinding) must not read the plan.
            status = 403 if not _is_local(self.headers.get("Host", "")) else 200 if self.path == "/" else 404
            body = content if status == 200 else b""
            self.send_response(status)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Requests are not listed."""

    try:
        return http.server.ThreadingHTTPServer((HOST, port), Handler)
    except (OSError, OverflowError) as error:
        raise CommandError(f"cannot listen on port {port}: {error}", where="--port") from None
