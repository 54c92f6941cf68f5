"""Start the server of a directory or join it, and leave it again."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

import msgspec
from msgspec import Struct

from sqlstreams.embedded import _supervisor
from sqlstreams.embedded._account import Account, server_account
from sqlstreams.embedded._binaries import binaries_for, find_binaries, major_of, version_of
from sqlstreams.embedded._directory import default_directory, prepare
from sqlstreams.embedded._locks import holding, is_held, open_lock
from sqlstreams.embedded._supervisor import try_lock, wait_until
from sqlstreams.errors import EmbeddedUnavailable, InvalidInput

PATIENCE = 120.0
"""Seconds until a start, or a wait for other processes, is given up. Recovery after a crash goes on by itself."""

_TAIL = 20
_INHERITED = ("PATH", "TMPDIR", "LD_LIBRARY_PATH", "LD_PRELOAD", "DYLD_LIBRARY_PATH")


class Running(Struct, frozen=True):
    """What the supervisor publishes about a server that is ready."""

    socket_directory: str
    version: str
    settings: dict[str, str]
    supervisor: int


class Server:
    """One use of a running PostgreSQL, from `serve()` until `close()` or the end of the process, however it comes.

    The use does not end when the object is forgotten. Programs that this process starts do not inherit it. A `fork`
    without `exec` does (multiprocessing's "fork"): the server then runs until both processes have closed it or ended.
    """

    def __init__(self, directory: Path, account: Account, running: Running, *, users: int, joined: bool) -> None:
        self._account = account
        self._users: int | None = users
        self.directory = directory
        self.version = running.version
        # With the port, which libpq would otherwise take from the caller's PGPORT.
        self.url = f"postgresql://postgres@/postgres?host={quote(running.socket_directory)}&port=5432"
        self.joined = joined
        """Whether the server was running already, started by another."""

    def users(self) -> tuple[int, ...]:
        """Return the ids of the processes that use this server now; empty after `close()`."""
        return () if self._users is None else tuple(sorted(set(_living(_listed(self._users)))))

    def close(self) -> None:
        """Stop using the server, and wait until it has stopped if nobody else uses it."""
        users, self._users = self._users, None
        if users is not None:
            _leave(self.directory, self._account, users)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<embedded PostgreSQL {self.version} in {self.directory}>"


def serve(directory: Path | None = None, *, settings: Mapping[str, str] | None = None) -> Server:
    """Return a running PostgreSQL that keeps its data in `directory`, started if no other process has done so.

    Every process that serves the same directory shares one server, which ends when the last of them has closed it or
    has ended. Without a directory it is the user's own, one for each major version. `settings` are configuration
    parameters of PostgreSQL; where the server runs already it must have been started with the same values.

    This blocks: about a second when the directory is new, a fraction of that later. Raises `EmbeddedUnavailable` when
    there are no binaries, the directory cannot be used, or the server does not start (with the end of its log).
    """
    wanted = _checked(settings or {})
    binaries = find_binaries()
    home = (directory or default_directory(major_of(version_of(binaries)))).resolve()
    account = server_account(home)
    prepare(home, account)
    with holding(home / _supervisor.START_LOCK, account, seconds=PATIENCE) as undisturbed:
        if not undisturbed:
            raise EmbeddedUnavailable(f"another process starts or stops the server in {home} for over {PATIENCE:.0f} s")
        return _enter(_Plan(home=home, account=account, binaries=binaries, settings=wanted))


class _Plan(Struct, frozen=True):
    home: Path
    account: Account
    binaries: Path
    settings: dict[str, str]


def _checked(settings: Mapping[str, str]) -> dict[str, str]:
    if reserved := sorted(_supervisor.RESERVED & settings.keys()):
        raise InvalidInput("settings", f"must not contain {reserved[0]!r}, which the embedded server sets itself")
    return dict(settings)


def _enter(plan: _Plan) -> Server:
    users = open_lock(plan.home / _supervisor.USERS_LOCK, plan.account)
    try:
        # A supervisor that stops has this lock alone until PostgreSQL is gone.
        if not wait_until(lambda: try_lock(users, fcntl.LOCK_SH), seconds=PATIENCE):
            raise EmbeddedUnavailable(f"the server in {plan.home} does not finish stopping")
        running, joined = _join_or_start(plan)
        _refuse_other_settings(plan, running)
        _list(users, [*_listed(users), os.getpid()])
    except BaseException:
        os.close(users)
        raise
    return Server(plan.home, plan.account, running, users=users, joined=joined)


def _join_or_start(plan: _Plan) -> tuple[Running, bool]:
    joined = True
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if not is_held(plan.home / _supervisor.SUPERVISOR_LOCK, plan.account):
            joined = not _start(plan)
        elif running := _running(plan.home):
            return running, joined
        else:
            time.sleep(_supervisor.POLL)
    raise _not_started(plan.home, f"it was not ready within {PATIENCE:.0f} s")


def _start(plan: _Plan) -> bool:
    """Start a supervisor and wait until its server is ready. False when one of another process was faster."""
    # What a killed supervisor left here would be taken for the answer of the next one.
    (plan.home / _supervisor.STATE).unlink(missing_ok=True)
    command = [sys.executable, "-I", "-S", "-X", "utf8", _supervisor.__file__, str(plan.home)]
    try:
        started = subprocess.run(
            command,
            check=False,
            input=_request(plan),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd="/",
            env=_environment(),
            start_new_session=True,
            timeout=PATIENCE,
        )
    except subprocess.TimeoutExpired as late:
        raise _not_started(plan.home, f"it was not ready within {PATIENCE:.0f} s") from late
    report = started.stdout.decode(errors="replace").strip()
    if report not in (_supervisor.READY, _supervisor.BUSY):
        raise _not_started(plan.home, report or "its supervisor ended before it was ready")
    return report == _supervisor.READY


def _request(plan: _Plan) -> bytes:
    version = version_of(plan.binaries)
    return msgspec.json.encode(
        {
            "binaries": str(binaries_for(plan.account, plan.binaries, version=version)),
            "version": version,
            "major": major_of(version),
            "settings": plan.settings,
            "uid": plan.account.uid,
            "gid": plan.account.gid,
        }
    )


def _environment() -> dict[str, str]:
    # Of the caller's variables only what programs need to run: PGPORT would mislead, and others are secrets.
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return inherited | {"LC_ALL": "C", "TZ": "UTC"}


def _running(home: Path) -> Running | None:
    try:
        return msgspec.json.decode((home / _supervisor.STATE).read_bytes(), type=Running)
    except FileNotFoundError:
        return None


def _refuse_other_settings(plan: _Plan, running: Running) -> None:
    for name, value in plan.settings.items():
        if (actual := running.settings.get(name)) != value:
            raise EmbeddedUnavailable(
                f"the server in {plan.home} runs already, with {name} = {actual or 'its default'} and not {value}: "
                "close its other users first, or give another directory"
            )


def _not_started(home: Path, problem: str) -> EmbeddedUnavailable:
    log = home / _supervisor.LOG
    try:
        said = "\n".join(log.read_text(errors="replace").splitlines()[-_TAIL:])
    except OSError:
        said = "(there is none)"
    return EmbeddedUnavailable(f"the embedded PostgreSQL did not start: {problem}\nThe end of its log, {log}:\n{said}")


def _leave(home: Path, account: Account, users: int) -> None:
    # The directory may have been removed by now.
    with contextlib.ExitStack() as use, contextlib.suppress(FileNotFoundError):
        use.callback(os.close, users)
        with holding(home / _supervisor.START_LOCK, account, seconds=PATIENCE) as undisturbed:
            if undisturbed:
                _unlist(users)
                use.close()
                _await_end(home, account)


def _await_end(home: Path, account: Account) -> None:
    """Wait until the supervisor has ended or others turn out to use the server. Nobody can join meanwhile."""
    with (home / _supervisor.USERS_LOCK).open("r+b") as users:
        wait_until(lambda: _ended(home, account) or _used(users.fileno()), seconds=PATIENCE)


def _ended(home: Path, account: Account) -> bool:
    return not is_held(home / _supervisor.SUPERVISOR_LOCK, account)


def _used(users: int) -> bool:
    # Not to be had alone, yet to be had shared: others share it. Not to be had at all: the supervisor stops the server.
    used = not try_lock(users, fcntl.LOCK_EX) and try_lock(users, fcntl.LOCK_SH)
    fcntl.flock(users, fcntl.LOCK_UN)
    return used


def _listed(users: int) -> list[int]:
    return [int(line) for line in os.pread(users, os.fstat(users).st_size, 0).split()]


def _list(users: int, pids: Iterable[int]) -> None:
    text = "".join(f"{pid}\n" for pid in _living(pids))
    os.ftruncate(users, 0)
    os.pwrite(users, text.encode(), 0)


def _unlist(users: int) -> None:
    pids = _listed(users)
    with contextlib.suppress(ValueError):
        pids.remove(os.getpid())
    _list(users, pids)


def _living(pids: Iterable[int]) -> list[int]:
    return [pid for pid in pids if _lives(pid)]


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
