"""Serves one document on the loopback interface until interrupted."""

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from engine.core.errors import ConfigError


def serve_document(document: bytes, port: int, ready: Callable[[str], None]) -> None:
    """Serves until `KeyboardInterrupt`; `ready` is given the address.

    Raises:
        ConfigError: the port cannot be used.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.split("?")[0] != "/":
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("content-type", "text/html; charset=utf-8")
            self.send_header("content-length", str(len(document)))
            self.send_header("cache-control", "no-store")
            self.end_headers()
            self.wfile.write(document)

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"--port {port} cannot be used: {error}") from error
    with server:
        ready(f"http://127.0.0.1:{server.server_address[1]}/")
        server.serve_forever()
