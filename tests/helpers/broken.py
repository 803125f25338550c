"""A tracking server that is there and cannot do anything."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler
from typing import Any


class Broken(BaseHTTPRequestHandler):
    """Answers 500 to everything."""

    def do_GET(self) -> None:
        self.send_error(500)

    do_POST = do_PUT = do_PATCH = do_GET

    def log_message(self, format: str, *arguments: Any) -> None:
        pass
