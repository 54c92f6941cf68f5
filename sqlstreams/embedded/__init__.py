"""Run a real PostgreSQL for tests, demos and `sqlstreams dev`, shared by every process that asks for it.

    with embedded.serve() as server:
        psycopg.connect(server.url)

A server belongs to a directory. The first user starts it, later users join it, and it ends with its last user,
however that one ends. How the processes agree is told in `_supervisor.py`.
"""

from sqlstreams.embedded._binaries import find_binaries
from sqlstreams.embedded._server import Server, serve

__all__ = ["Server", "find_binaries", "serve"]
