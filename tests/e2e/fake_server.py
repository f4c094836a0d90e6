"""A web server of a test's own: what stands behind a URL that the service is given."""

import contextlib
import http.server
import threading


@contextlib.contextmanager
def fake_server(answer):
    """`answer(method, path, body bytes)` gives (status, content type, bytes). Yields the server's URL."""
    class Handler(http.server.BaseHTTPRequestHandler):
        def reply(self):
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            status, content_type, raw = answer(self.command, self.path, body)
            self.send_response(status)
            self.send_header("content-type", content_type)
            self.send_header("content-length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        do_GET = do_POST = reply

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
