"""Hold the lock files by which the processes that share a server agree."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from sqlstreams.embedded._account import Account, is_root
from sqlstreams.embedded._supervisor import try_lock, wait_until


def open_lock(file: Path, account: Account) -> int:
    """Open a lock file, which belongs to `account` when it is new. Closing the descriptor gives up its lock."""
    while True:
        with contextlib.suppress(FileNotFoundError):
            return os.open(file, os.O_RDWR | os.O_NOFOLLOW)
        with contextlib.suppress(FileExistsError):
            return _create(file, account)


@contextlib.contextmanager
def holding(file: Path, account: Account, *, seconds: float) -> Iterator[bool]:
    """Have a lock alone while the block runs, and tell whether it could be had in time."""
    lock = open_lock(file, account)
    try:
        yield wait_until(lambda: try_lock(lock, fcntl.LOCK_EX), seconds=seconds)
    finally:
        release(lock)


def is_held(file: Path, account: Account) -> bool:
    """Tell whether another process has this lock alone."""
    lock = open_lock(file, account)
    try:
        return not try_lock(lock, fcntl.LOCK_SH)
    finally:
        release(lock)


def release(lock: int) -> None:
    """Give up a lock also where a process forked meanwhile by another thread has a copy of the descriptor."""
    fcntl.flock(lock, fcntl.LOCK_UN)
    os.close(lock)


def _create(file: Path, account: Account) -> int:
    lock = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    if is_root():
        os.fchown(lock, account.uid, account.gid)
    return lock
