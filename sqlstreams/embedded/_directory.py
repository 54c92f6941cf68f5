"""Choose and prepare the directory that a server lives in."""

from __future__ import annotations

import os
from pathlib import Path

from sqlstreams.embedded._account import Account, is_root, make_public, reachable
from sqlstreams.embedded._supervisor import START_LOCK
from sqlstreams.errors import EmbeddedUnavailable

SYSTEM_DATA = Path("/var/lib")


def default_directory(major: int) -> Path:
    """Return this user's own directory for servers of a major version, so that an upgrade never meets older data."""
    return _data_home() / "sqlstreams" / f"pg{major}"


def prepare(directory: Path, account: Account) -> None:
    """Make the directory if it is new, and refuse one that holds something else or that `account` cannot use."""
    try:
        if is_root():
            make_public(directory.parent)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _adopt(directory, account)
    except OSError as error:
        raise EmbeddedUnavailable(f"cannot use {directory} for the embedded server: {error.strerror}") from error
    if not reachable(directory, account):
        raise EmbeddedUnavailable(
            f"the server runs as the user {account.name!r}, who cannot enter {directory}: every directory above it "
            "must be open to that user (mode 755); give one elsewhere, for example in /var/lib or directly in /tmp"
        )


def _data_home() -> Path:
    # The home of root is closed to the user that the server then runs as.
    if is_root():
        return SYSTEM_DATA
    given = Path(os.environ.get("XDG_DATA_HOME", ""))
    return given if given.is_absolute() else Path("~/.local/share").expanduser()


def _adopt(directory: Path, account: Account) -> None:
    # The first process gives an empty directory away before it puts files there: look in the other order.
    empty = not any(directory.iterdir())
    owner = directory.stat().st_uid
    if empty and owner in (os.geteuid(), account.uid):
        directory.chmod(0o700)
        if owner != account.uid:
            os.chown(directory, account.uid, account.gid)
    elif owner != account.uid:
        raise EmbeddedUnavailable(f"{directory} belongs to another user than {account.name!r}, who runs the server")
    elif not (directory / START_LOCK).exists():
        raise EmbeddedUnavailable(
            f"{directory} holds something else than an embedded server: give an empty or new directory"
        )
