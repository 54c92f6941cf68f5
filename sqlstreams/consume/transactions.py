"""Handlers within a transaction: what they write and the record of the delivery commit together, or neither does.

The record proves the lease, and is asked of the server together with the commit: without the lease the commit is a
rollback. It also settles what became of a commit whose answer was lost: `record_exceptions` passes over a message that
the commit made done, and once it has marked the message as done itself, a commit that was still on its way cannot take
effect any more. For rows of the exception queue their token does the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import psycopg
from psycopg import IsolationLevel
from psycopg.pq import TransactionStatus

from sqlstreams.consume.ranges import Work
from sqlstreams.database import AsyncDatabase, is_broken
from sqlstreams.errors import LeaseLost
from sqlstreams.statements import Statement

Proof = Callable[[Work, Sequence[int], object], Statement[Any]]
"""Makes the record of what a handler did: of its work, the places of the messages there, and what it returned."""

_LEASE_LOST: Final = "SQ040"
_ROLLBACK_WITHIN: Final = 5.0


class DeliveryRefused(LeaseLost):
    """The transaction of a handler was rolled back, because its work was given to another process."""


class Undone(Exception):
    """The connection was lost before the handler began or after it ended: nothing is known against the message."""


class AsyncTransactions:
    """One connection, and one transaction after the other on it."""

    def __init__(self, database: AsyncDatabase, proof: Proof) -> None:
        self._database = database
        self._proof = proof
        self._connection: psycopg.AsyncConnection[Any] | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is a connection, as far as is known."""
        return self._connection is not None and not self._connection.closed

    async def open(self) -> None:
        """Connect."""
        # Not one from the pool: those read json as bytes, and are for the library's own moments.
        # With autocommit, a handler that ends its transaction stands without one, and that is seen.
        connection = await psycopg.AsyncConnection.connect(self._database.address.conninfo, autocommit=True)
        await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)
        if self._database.through_pooler:
            connection.prepare_threshold = None
        self._connection = connection

    async def close(self) -> None:
        """Disconnect."""
        if self._connection is not None:
            await self._connection.close()

    async def call(
        self,
        handler: Callable[[Any, Any], Awaitable[object]],
        payload: Any,
        work: Work,
        indexes: Sequence[int],
    ) -> object:
        """Call the handler within a transaction and record what it did; return what it returned.

        Raises what the handler raises, `DeliveryRefused` or `Undone`; then the handler's writes are undone, unless the
        commit was done and its answer lost.
        """
        transaction = await self._begin()
        try:
            result = await handler(payload, transaction.connection)
            _check_within(transaction.connection)
            record = self._proof(work, indexes, result)
        except BaseException as error:
            await self._roll_back(transaction, error)
            raise
        await self._commit(transaction, record)
        return result

    async def _begin(self) -> psycopg.AsyncTransaction:
        try:
            return await self._begin_once()
        except (psycopg.Error, TimeoutError):  # it broke while nothing was done with it
            await self.close()
        try:
            return await self._begin_once()
        except (psycopg.Error, TimeoutError) as error:
            await self.close()
            raise Undone(str(error)) from error

    async def _begin_once(self) -> psycopg.AsyncTransaction:
        if not self.is_open:
            await self.open()
        assert self._connection is not None
        transaction = psycopg.AsyncTransaction(self._connection)
        async with asyncio.timeout(self._database.address.timeout):
            await transaction.__aenter__()
        return transaction

    async def _roll_back(self, transaction: psycopg.AsyncTransaction, error: BaseException) -> None:
        connection = transaction.connection
        try:
            async with asyncio.timeout(_ROLLBACK_WITHIN):
                await transaction.__aexit__(type(error), error, error.__traceback__)
        except (psycopg.Error, TimeoutError):
            await connection.close()
        if is_broken(error) or connection.info.transaction_status != TransactionStatus.IDLE:
            await connection.close()

    async def _commit(self, transaction: psycopg.AsyncTransaction, record: Statement[Any]) -> None:
        connection = transaction.connection
        try:
            async with asyncio.timeout(self._database.address.timeout), connection.pipeline():
                await connection.execute(record.query, record.parameters, binary=True)
                await transaction.__aexit__(None, None, None)
        except BaseException as error:
            await connection.close()
            if (meaning := _meaning(error)) is not None:
                raise meaning from error
            raise


class Transactions:
    """One connection, and one transaction after the other on it, blocking; for one thread."""

    def __init__(self, database: AsyncDatabase, proof: Proof) -> None:
        self._database = database
        self._proof = proof
        self._connection: psycopg.Connection[Any] | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is a connection, as far as is known."""
        return self._connection is not None and not self._connection.closed

    def open(self) -> None:
        """Connect."""
        connection = psycopg.connect(self._database.address.conninfo, autocommit=True)
        connection.isolation_level = IsolationLevel.READ_COMMITTED
        if self._database.through_pooler:
            connection.prepare_threshold = None
        self._connection = connection

    def close(self) -> None:
        """Disconnect."""
        if self._connection is not None:
            self._connection.close()

    def call(self, handler: Callable[[Any, Any], object], payload: Any, work: Work, indexes: Sequence[int]) -> object:
        """Call the handler within a transaction and record what it did; see `AsyncTransactions.call`."""
        transaction = self._begin()
        try:
            result = handler(payload, transaction.connection)
            _check_within(transaction.connection)
            if isinstance(result, Awaitable):
                raise TypeError("a handler that returns something to await must be `async def` when transactional")
            record = self._proof(work, indexes, result)
        except BaseException as error:
            self._roll_back(transaction, error)
            raise
        self._commit(transaction, record)
        return result

    def _begin(self) -> psycopg.Transaction:
        try:
            return self._begin_once()
        except psycopg.Error:  # it broke while nothing was done with it
            self.close()
        try:
            return self._begin_once()
        except psycopg.Error as error:
            self.close()
            raise Undone(str(error)) from error

    def _begin_once(self) -> psycopg.Transaction:
        if not self.is_open:
            self.open()
        assert self._connection is not None
        transaction = psycopg.Transaction(self._connection)
        transaction.__enter__()
        return transaction

    def _roll_back(self, transaction: psycopg.Transaction, error: BaseException) -> None:
        connection = transaction.connection
        try:
            transaction.__exit__(type(error), error, error.__traceback__)
        except psycopg.Error:
            connection.close()
        if is_broken(error) or connection.info.transaction_status != TransactionStatus.IDLE:
            connection.close()

    def _commit(self, transaction: psycopg.Transaction, record: Statement[Any]) -> None:
        connection = transaction.connection
        try:
            with connection.pipeline():
                connection.execute(record.query, record.parameters, binary=True)
                transaction.__exit__(None, None, None)
        except BaseException as error:
            connection.close()
            if (meaning := _meaning(error)) is not None:
                raise meaning from error
            raise


def _check_within(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    if connection.info.transaction_status == TransactionStatus.IDLE:
        raise RuntimeError("the handler ended the transaction in which its delivery is recorded")


def _meaning(error: BaseException) -> Exception | None:
    if isinstance(error, psycopg.Error) and error.sqlstate == _LEASE_LOST:
        return DeliveryRefused("the work was given to another process, so the handler's transaction was rolled back")
    if isinstance(error, TimeoutError) or is_broken(error):
        return Undone(f"the connection was lost at the commit: {error}")
    return None
