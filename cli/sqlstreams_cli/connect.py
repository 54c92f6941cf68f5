"""From the options of a command to a client of the library."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from sqlstreams import Client
    from sqlstreams.errors import NotFound

URL_VARIABLE = "SQLSTREAMS_DATABASE_URL"
SCHEMA_VARIABLE = "SQLSTREAMS_SCHEMA"

_CONNECT_SECONDS = 10


class Session(Struct, frozen=True):
    """What a command was told beside its own arguments."""

    database_url: str | None = None
    schema: str | None = None
    as_json: bool = False
    verbose: bool = False

    @property
    def schema_name(self) -> str:
        """The schema of the installation."""
        return self.schema or os.environ.get(SCHEMA_VARIABLE) or "sqlstreams"

    @property
    def given_url(self) -> str | None:
        """The URL that the user gave, if any."""
        return self.database_url or os.environ.get(URL_VARIABLE) or None

    @contextmanager
    def url(self) -> Iterator[str]:
        """Lend the URL of the database: the one given, or that of the embedded server, which runs meanwhile."""
        if self.given_url is not None:
            yield self.given_url
            return
        from sqlstreams import embedded

        with embedded.serve() as server:
            talk(f"using the embedded PostgreSQL {server.version} in {server.directory}, as no --database-url is given")
            yield server.url

    @contextmanager
    def client(self, *, allow_destroy: bool = False, manager: bool = True) -> Iterator[Client]:
        """Lend a client that has reached its database."""
        from sqlstreams import Client
        from sqlstreams.errors import NotFound

        with ExitStack() as stack:
            url = stack.enter_context(self.url())
            client = Client(url, schema=self.schema_name, allow_destroy=allow_destroy, manager=manager)
            _reach(url)
            stack.enter_context(client)
            try:
                yield client
            except NotFound as absent:
                for hint in _suggestions(client, absent):
                    absent.add_note(hint)
                raise


def talk(text: str) -> None:
    """Say something to the person at the terminal, beside the output; to nobody when stderr is closed."""
    if sys.stderr is not None:
        with suppress(BrokenPipeError):
            print(text, file=sys.stderr, flush=True)


def _reach(url: str) -> None:
    """Connect once, so that the reason of a failure is told at once instead of after the pool's patience."""
    import psycopg

    from sqlstreams.errors import DatabaseUnavailable

    try:
        psycopg.connect(url, connect_timeout=_CONNECT_SECONDS).close()
    except psycopg.Error as error:
        raise DatabaseUnavailable(f"no connection to the database: {str(error).strip()}") from error


def _suggestions(client: Client, absent: NotFound) -> list[str]:
    match absent.kind:
        case "stream":
            names = [each.name for each in client.list_streams()]
        case "consumer group":
            names = [f"{each.name} on {each.stream}" for each in client.list_consumers()]
        case "deadline":
            names = [each.name for each in client.list_deadlines()]
        case "schedule":
            names = [each.name for each in client.list_schedules()]
        case _:
            return []
    close = difflib.get_close_matches(absent.name, names, n=3)
    return [f"did you mean {' or '.join(close)}?"] if close else []
