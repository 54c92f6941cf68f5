"""Keys that this process holds, and the messages that wait for each other behind them."""

from __future__ import annotations

from collections import deque
from typing import Final

from sqlstreams.consume.ranges import Work

Item = tuple[Work, int]

# A key with more messages in memory takes no further ones: they wait in the database.
_MOST: Final = 100


class _Chain:
    """One key: how many of its messages are here, which runs, which wait, and whether it may go on."""

    __slots__ = ("blocked", "left", "running", "waiting")

    def __init__(self) -> None:
        self.left = 0
        self.running = False
        self.blocked = False
        self.waiting: deque[Item] = deque()


class KeyChains:
    """One message of a key runs, the others of it wait. A key stays here until the database has given it up."""

    def __init__(self) -> None:
        self._chains: dict[str, _Chain] = {}

    def hold(self, key: str) -> bool:
        """Take note of one more message of a key; say whether it may ever run here, or is blocked by an earlier one."""
        chain = self._chains.setdefault(key, _Chain())
        chain.left += not chain.blocked
        return not chain.blocked

    def start(self, key: str, item: Item) -> bool:
        """Say whether a message may begin now; if not, it waits for the one that runs."""
        chain = self._chains[key]
        if chain.running:
            chain.waiting.append(item)
            return False
        chain.running = True
        return True

    def end(self, key: str) -> Item | None:
        """Take note that the running message of a key ended; return the one that runs now."""
        chain = self._chains[key]
        chain.left -= 1
        while chain.waiting:
            work, index = chain.waiting.popleft()
            if not work.lost:
                return work, index
            chain.left -= 1
        chain.running = False
        return None

    def block(self, key: str) -> list[Item]:
        """Take note that the running message of a key ended and blocks those behind it; return those that waited."""
        chain = self._chains[key]
        waited = list(chain.waiting)
        chain.waiting.clear()
        chain.left = 0
        chain.running = False
        chain.blocked = True
        return [item for item in waited if not item[0].lost]

    def extendable(self) -> list[str]:
        """Return the keys behind which more messages may wait in memory."""
        return [key for key, chain in self._chains.items() if chain.left < _MOST and not chain.blocked]

    def idle(self, keys: list[str]) -> list[str]:
        """Return those of some keys that are held and have no message left here."""
        return [key for key in keys if key in self._chains and not self._chains[key].left]

    def forget(self, keys: list[str]) -> None:
        """Take note that the database gave keys up."""
        for key in keys:
            self._chains.pop(key, None)

    def held(self) -> list[str]:
        """Return every key that is held."""
        return list(self._chains)
