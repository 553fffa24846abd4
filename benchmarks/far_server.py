"""Files over HTTP, each answer late by so many seconds: ``python far_server.py FOLDER SECONDS`` prints its port."""

from __future__ import annotations

import sys
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer


class Late(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    seconds = 0.0

    def do_GET(self) -> None:
        time.sleep(self.seconds)
        wanted = self.headers.get("Range")
        if wanted is None:
            super().do_GET()
            return
        try:
            with open(self.translate_path(self.path), "rb") as file:
                content = file.read()
        except OSError:
            self.send_error(404)
            return
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        start = int(first) if first else len(content) - int(last)
        stop = min(int(last) + 1, len(content)) if first and last else len(content)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(content)}")
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        self.wfile.write(content[start:stop])

    def log_message(self, *_: object) -> None:
        """Nothing is told of each request."""


class Server(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True


def main(folder: str, seconds: str) -> None:
    Late.seconds = float(seconds)
    with Server(("127.0.0.1", 0), partial(Late, directory=folder)) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
