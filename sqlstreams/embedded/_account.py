"""Know which user of the operating system the server runs as."""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path

from msgspec import Struct

from sqlstreams.errors import EmbeddedUnavailable


class Account(Struct, frozen=True):
    """A user of the operating system."""

    name: str
    uid: int
    gid: int


def is_root() -> bool:
    """Tell whether this process is root, whom PostgreSQL refuses to run as."""
    return os.geteuid() == 0


def server_account(directory: Path) -> Account:
    """Return whom the server in `directory` runs as: this user, or for root the user `postgres` or else `nobody`.

    A directory that belongs to one of these two stays with it, also when a user `postgres` arrives later.
    """
    if not is_root():
        return _this_user()
    stand_ins = _stand_ins()
    if not stand_ins:
        raise EmbeddedUnavailable(
            "PostgreSQL does not run as root, and there is no user 'postgres' or 'nobody' to run it as"
        )
    owner = directory.stat().st_uid if directory.exists() else None
    return next((account for account in stand_ins if account.uid == owner), stand_ins[0])


def reachable(path: Path, account: Account) -> bool:
    """Tell whether `account` may enter `path`, by the mode bits of it and of every directory above it.

    That is all there is to a stand-in of root. An ordinary user may have further groups, and will see for itself.
    """
    return not is_root() or all(_may_enter(part.stat(), account) for part in (path, *path.parents))


def make_public(directory: Path) -> None:
    """Make a directory, with those above it that are missing, for every user to enter, whatever the umask."""
    if not directory.exists():
        make_public(directory.parent)
        directory.mkdir(exist_ok=True)
        directory.chmod(0o755)


def _may_enter(found: os.stat_result, account: Account) -> bool:
    if found.st_uid == account.uid:
        return bool(found.st_mode & stat.S_IXUSR)
    if found.st_gid == account.gid:
        return bool(found.st_mode & stat.S_IXGRP)
    return bool(found.st_mode & stat.S_IXOTH)


def _this_user() -> Account:
    uid = os.geteuid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = str(uid)
    return Account(name=name, uid=uid, gid=os.getegid())


def _stand_ins() -> list[Account]:
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    wanted = [known[name] for name in ("postgres", "nobody") if name in known]
    return [Account(name=entry.pw_name, uid=entry.pw_uid, gid=entry.pw_gid) for entry in wanted]
