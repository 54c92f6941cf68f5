"""What a relay counts."""

from __future__ import annotations

from msgspec import Struct


class RelayStats(Struct):
    """What one relay has counted: messages the broker confirmed, and what stood in the way.

    `repeated` counts messages that were published once more because no confirm came. Only they can be duplicates, and
    what a process had not written down as done when it died. `refused` counts refusals of single messages, `outages`
    how often the broker was away.
    """

    published: int = 0
    repeated: int = 0
    refused: int = 0
    outages: int = 0
