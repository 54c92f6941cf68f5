"""Threads that wait for another's commit: one is interrupted, too many come, and the client is closed meanwhile."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence

import pytest

from sqlstreams.errors import DatabaseUnavailable
from sqlstreams.produce.batch import Encoded
from sqlstreams.produce.group_commit import GroupCommit
from tests.support import eventually

WITHIN = 20.0


class Log:
    """Appends when it is allowed to."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.entered = threading.Event()
        self.allowed = threading.Event()

    def append(self, messages: Sequence[Encoded]) -> list[int]:
        self.entered.set()
        assert self.allowed.wait(WITHIN)
        self.payloads += [message.payload for message in messages]
        return list(range(len(self.payloads) - len(messages), len(self.payloads)))


def message(payload: bytes) -> Encoded:
    return Encoded(payload=payload, key=None, routing_key=None, options=None)


def test_an_interrupted_thread_takes_its_message_back() -> None:
    log = Log()
    commits = GroupCommit(log.append, max_pending=10)
    leader = threading.Thread(target=commits.produce, args=[message(b"first")])
    leader.start()
    assert log.entered.wait(WITHIN)

    _interrupt_when(lambda: len(commits._pending) == 1)
    with pytest.raises(KeyboardInterrupt):
        commits.produce(message(b"interrupted"))
    log.allowed.set()
    leader.join(WITHIN)

    assert commits.produce(message(b"last")) == 1
    assert log.payloads == [b"first", b"last"]


def test_a_thread_that_came_meanwhile_commits_next() -> None:
    log = Log()
    commits = GroupCommit(log.append, max_pending=10)
    callers = [threading.Thread(target=commits.produce, args=[message(b"%d" % number)]) for number in range(5)]
    callers[0].start()
    assert log.entered.wait(WITHIN)
    for caller in callers[1:]:
        caller.start()
    log.allowed.set()
    for caller in callers:
        caller.join(WITHIN)

    assert sorted(log.payloads) == [b"0", b"1", b"2", b"3", b"4"]
    assert not any(caller.is_alive() for caller in callers)


async def test_closing_lets_no_more_than_max_pending_wait_and_commits_all_that_came_before() -> None:
    log = Log()
    commits = GroupCommit(log.append, max_pending=2)
    callers = [threading.Thread(target=commits.produce, args=[message(b"%d" % number)]) for number in range(6)]
    callers[0].start()
    assert log.entered.wait(WITHIN)
    for caller in callers[1:]:
        caller.start()
    await eventually(lambda: commits._waiting == 3)
    assert len(commits._pending) == 2

    closing = threading.Thread(target=commits.close)
    closing.start()
    await eventually(lambda: commits._is_closed)
    with pytest.raises(DatabaseUnavailable, match="the client is closed; nothing was written"):
        commits.produce(message(b"late"))
    assert closing.is_alive()
    log.allowed.set()
    closing.join(WITHIN)

    assert not closing.is_alive()
    assert sorted(log.payloads) == [b"0", b"1", b"2", b"3", b"4", b"5"]
    for caller in callers:
        caller.join(WITHIN)


def _interrupt_when(is_so: Callable[[], bool]) -> None:
    main = threading.get_ident()

    def watch() -> None:
        pause = threading.Event()
        for _ in range(2_000):
            if is_so():
                signal.pthread_kill(main, signal.SIGINT)  # as Ctrl-C does
                return
            pause.wait(0.01)

    threading.Thread(target=watch, daemon=True).start()
