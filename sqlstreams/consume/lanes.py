"""Where a handler is called: in the event loop or in a thread, and within a transaction or without one."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from sqlstreams.consume.ranges import Work
from sqlstreams.consume.threads import HandlerThread
from sqlstreams.consume.transactions import AsyncTransactions, Proof, Transactions
from sqlstreams.database import AsyncDatabase
from sqlstreams.errors import InvalidInput

Handler = Callable[..., Awaitable[object] | object]


class Lane(Protocol):
    """One of the places where handlers run side by side; in each of them, one call follows the other."""

    @property
    def is_open(self) -> bool:
        """Whether a handler can be called now."""

    @property
    def is_stuck(self) -> bool:
        """Whether the last call, which nobody awaits any more, goes on."""

    async def open(self) -> None:
        """Get ready for calls; raises what a database raises that cannot be reached."""

    def call(self, payload: Any, work: Work, indexes: Sequence[int]) -> Awaitable[object]:
        """Call the handler with what some messages of `work` hold."""

    def abandon(self) -> None:
        """Leave a call that cannot be ended to itself."""

    async def close(self) -> None:
        """Let go of everything, after the call that may be under way."""


class Loop:
    """Calls an async handler."""

    is_open = True
    is_stuck = False

    def __init__(self, handler: Callable[[Any], Awaitable[object]]) -> None:
        self._handler = handler

    async def open(self) -> None:
        """Get ready for calls, as it always is."""

    def call(self, payload: Any, work: Work, indexes: Sequence[int]) -> Awaitable[object]:
        """Call the handler in the event loop."""
        return self._handler(payload)

    def abandon(self) -> None:
        """Do nothing: a task can be cancelled."""

    async def close(self) -> None:
        """Let go of nothing."""


class LoopTransaction(Loop):
    """Calls an async handler, each time within a transaction."""

    def __init__(self, handler: Callable[[Any, Any], Awaitable[object]], transactions: AsyncTransactions) -> None:
        self._within = transactions
        self._handler_within = handler

    @property
    def is_open(self) -> bool:  # type: ignore[override]  # what is always so for others
        """Whether there is a connection."""
        return self._within.is_open

    async def open(self) -> None:
        """Connect."""
        await self._within.open()

    def call(self, payload: Any, work: Work, indexes: Sequence[int]) -> Awaitable[object]:
        """Call the handler in the event loop, within a transaction."""
        return self._within.call(self._handler_within, payload, work, indexes)

    async def close(self) -> None:
        """Disconnect."""
        await self._within.close()


class Thread:
    """Calls a plain function in a thread of its own."""

    is_open = True

    def __init__(self, handler: Callable[[Any], object], name: str) -> None:
        self._handler = handler
        self._name = name
        self._thread = self._start()

    @property
    def is_stuck(self) -> bool:
        """Whether the last call, which nobody awaits any more, goes on."""
        return self._thread.is_busy

    async def open(self) -> None:
        """Get ready for calls, as it always is."""

    async def call(self, payload: Any, work: Work, indexes: Sequence[int]) -> object:
        """Call the handler in the thread, and await here what it may return to be awaited."""
        result = await self._thread.call(self._handler, payload)
        return await result if inspect.isawaitable(result) else result

    def abandon(self) -> None:
        """Leave a call that cannot be ended to itself, and go on in a new thread."""
        self._thread.close()
        self._thread = self._start()

    async def close(self) -> None:
        """Let the thread end after the call that it is in."""
        self._thread.close()

    def _start(self) -> HandlerThread:
        return HandlerThread(self._name)


class ThreadTransaction(Thread):
    """Calls a plain function in a thread of its own, each time within a transaction on a connection of the thread."""

    def __init__(
        self, handler: Callable[[Any, Any], object], name: str, *, transactions: Callable[[], Transactions]
    ) -> None:
        self._handler_within = handler
        self._transactions = transactions
        self._name = name
        self._thread = self._start()

    @property
    def is_open(self) -> bool:  # type: ignore[override]  # what is always so for others
        """Whether the thread has a connection."""
        return self._within.is_open

    async def open(self) -> None:
        """Connect."""
        await self._thread.call(self._within.open)

    async def call(self, payload: Any, work: Work, indexes: Sequence[int]) -> object:
        """Call the handler in the thread, within a transaction; the commit is there too."""
        return await self._thread.call(self._within.call, self._handler_within, payload, work, indexes)

    def _start(self) -> HandlerThread:
        # An abandoned call keeps its connection, and the thread that it is in disconnects.
        self._within = self._transactions()
        return HandlerThread(self._name, at_end=self._within.close)


def lanes(handler: Handler, *, database: AsyncDatabase, proof: Proof | None) -> Callable[[int], Lane]:
    """Return what makes the lanes for a handler, by number; with `proof` it is called within transactions."""
    is_async, call = is_coroutine_function(handler), handler
    if proof is None:
        return lambda number: Loop(call) if is_async else Thread(call, _name(number))  # type: ignore[arg-type]  # is_async said so
    if is_async:
        return lambda _: LoopTransaction(call, AsyncTransactions(database, proof))  # type: ignore[arg-type]  # as above
    return lambda number: ThreadTransaction(call, _name(number), transactions=lambda: Transactions(database, proof))


def is_coroutine_function(handler: Handler) -> bool:
    """Say whether a handler is `async def`, or an object whose call is."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004  # an object with an async __call__


def check_handler(handler: Handler, *, transactional: bool) -> None:
    """Refuse a handler that cannot take what it will be given."""
    if not callable(handler):
        raise InvalidInput("handler", f"must be a function, got {type(handler).__name__}")
    try:
        signature = inspect.signature(handler)
    except ValueError:  # a built-in may have none to look at
        return
    if transactional:
        try:
            signature.bind(None, None)
        except TypeError:
            raise InvalidInput(
                "handler", f"must take the payload and a connection when transactional, but it takes {signature}"
            ) from None


def check_connections(concurrency: int, *, pool_size: int) -> None:
    """Refuse more handlers at a time than connections: each of them holds one while it runs."""
    if concurrency > pool_size:
        raise InvalidInput(
            "concurrency",
            f"must not be over the client's pool_size when transactional, since each handler holds a connection: "
            f"got {concurrency} with pool_size {pool_size}",
        )


def _name(number: int) -> str:
    return f"sqlstreams-handler-{number}"
