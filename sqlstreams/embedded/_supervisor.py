"""Own one PostgreSQL server: start it, and stop it when its last user is gone.

This is a program of its own (`python -I -S _supervisor.py DIRECTORY`, the rest of the request as JSON on stdin), so
it imports nothing but the standard library. It says `ready` on stdout, or `busy` when another supervisor was faster,
or what went wrong.

A user is an open file: whoever holds `users.lock` shared. The kernel drops that lock however a process ends, so
nobody has to say goodbye, and the supervisor only waits until it can have the lock alone. It keeps the lock while it
stops the server, so a user who arrives just then waits, finds no supervisor, and starts the next one. The files of
the directory:

    start.lock        held while a user joins, starts the server or leaves: one at a time
    users.lock        held shared by every user, alone by a supervisor that stops; its text is the users' process ids
    supervisor.lock   held while a supervisor lives
    postgres.lock     inherited by the processes of PostgreSQL: while it is held, one of them lives
    server.json       where the server answers; present while it is ready
    data/             the cluster, complete from the moment it has this name
    server.log        what PostgreSQL and the supervisor say

When the supervisor is killed, Linux tells PostgreSQL to stop. Elsewhere the next supervisor stops the orphan.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

_prctl: Callable[..., int] | None = None
if sys.platform == "linux":
    with contextlib.suppress(ImportError):  # a Python built without libffi lacks ctypes
        import ctypes

        _prctl = ctypes.CDLL(None).prctl

START_LOCK = "start.lock"
USERS_LOCK = "users.lock"
SUPERVISOR_LOCK = "supervisor.lock"
POSTGRES_LOCK = "postgres.lock"
STATE = "server.json"
DATA = "data"
LOG = "server.log"

READY = "ready"
BUSY = "busy"

POLL = 0.005
"""Seconds between two looks at what cannot be waited for."""

RESERVED = frozenset(
    {"data_directory", "external_pid_file", "hba_file", "listen_addresses", "port"}
    | {"unix_socket_directories", "unix_socket_permissions"}
)
"""The settings by which the server is private and is found; nobody else may give them."""

STOP_STEPS = ((signal.SIGINT, 30.0), (signal.SIGQUIT, 10.0), (signal.SIGKILL, 10.0))
"""How PostgreSQL is stopped: fast, then at once (the next start recovers), then by the kernel. Each has its seconds."""

_DEFAULTS = {
    "cluster_name": "sqlstreams",
    "max_connections": "200",
    "max_prepared_transactions": "10",
    "shared_buffers": "256MB",
}
_SOCKET = ".s.PGSQL.5432"
_LONGEST_LOG = 10 * 1024 * 1024
_PR_SET_PDEATHSIG = 1


class Failure(Exception):
    """The server cannot be started, for a reason that its user should read."""


class Request(NamedTuple):
    """What to run, where, and as whom."""

    directory: str
    binaries: str
    version: str
    major: int
    settings: dict[str, str]
    uid: int
    gid: int

    @property
    def data(self) -> Path:
        """The directory of the cluster."""
        return Path(self.directory, DATA)


def main() -> None:
    """Leave the caller's process tree, become the server's user and supervise."""
    request = Request(directory=sys.argv[1], **json.load(sys.stdin))
    if os.fork() > 0:
        os._exit(0)
    _become(uid=request.uid, gid=request.gid)
    try:
        supervise(request)
    except Failure as failure:
        _report(str(failure))


def supervise(request: Request) -> None:
    """Run the server from its start to its end, unless another supervisor already does."""
    directory = Path(request.directory)
    _write_to_log(directory / LOG)
    if not try_lock(_open(directory / SUPERVISOR_LOCK), fcntl.LOCK_EX):
        return _report(BUSY)
    lock = _claim_cluster(request.data)
    sockets = _socket_directory(directory)
    postgres = _start(request, sockets, lock=lock)
    try:
        _await_ready(postgres, request.data)
        _publish(directory / STATE, _state(request, sockets))
        _report(READY)
        reason = _await_reason_to_stop(postgres, users=_open(directory / USERS_LOCK))
        _say(f"stops PostgreSQL, since {reason}")
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (directory / STATE).unlink(missing_ok=True)
        stop(postgres)
        _remove_if_empty(sockets)


def stop(postgres: subprocess.Popen[bytes], steps: tuple[tuple[signal.Signals, float], ...] = STOP_STEPS) -> None:
    """Stop PostgreSQL, going on to the next signal when the seconds of one have passed."""
    for signum, patience in steps:
        postgres.send_signal(signum)
        with contextlib.suppress(subprocess.TimeoutExpired):
            postgres.wait(patience)
            return


def try_lock(file: int, kind: int) -> bool:
    """Take a lock of this kind (`fcntl.LOCK_SH` or `LOCK_EX`) if that needs no waiting."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def wait_until(claim: Callable[[], bool], *, seconds: float) -> bool:
    """Wait until `claim` is true, and tell whether it became so in time."""
    deadline = time.monotonic() + seconds
    while not claim():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL)
    return True


def _become(*, uid: int, gid: int) -> None:
    # Signals that the caller blocks or ignores are inherited. After the change of user nothing more can be imported:
    # the standard library may lie where only the caller can read.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    os.umask(0o077)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)


def _write_to_log(log: Path) -> None:
    if log.exists() and log.stat().st_size > _LONGEST_LOG:
        log.replace(log.with_suffix(".log.old"))
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    os.dup2(file, sys.stderr.fileno())
    os.close(file)


def _say(text: str) -> None:
    sys.stderr.write(f"supervisor: {text}\n")
    sys.stderr.flush()


def _report(text: str) -> None:
    # Whoever started this program reads until the pipe is closed, and may be gone.
    with contextlib.suppress(BrokenPipeError):
        os.write(sys.stdout.fileno(), text.encode())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())


def _open(lock: Path) -> int:
    return os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)


def _start(request: Request, sockets: Path, *, lock: int) -> subprocess.Popen[bytes]:
    if not request.data.exists():
        _initialise(request, lock=lock)
    _refuse_other_version(request)
    _clear_after_a_crash(request.data, sockets)
    return _launch(_postgres_command(request, sockets), lock=lock)


def _claim_cluster(data: Path) -> int:
    """Take the lock that PostgreSQL's processes inherit, stopping the orphan that a killed supervisor left with it."""
    lock = _open(data.with_name(POSTGRES_LOCK))
    for signum, patience in (None, 0.0), *STOP_STEPS:
        if signum and (orphan := _listening_postmaster(data)):
            _say(f"stops the orphaned PostgreSQL, process {orphan}, by {signum.name}")
            with contextlib.suppress(ProcessLookupError):
                os.kill(orphan, signum)
        if wait_until(lambda: try_lock(lock, fcntl.LOCK_EX), seconds=patience):
            return lock
    raise Failure(f"a process of an earlier PostgreSQL still runs in {data} and does not stop")


def _listening_postmaster(data: Path) -> int | None:
    """Return the process id in postmaster.pid if a server listens where that file says.

    The number alone proves nothing: after a crash it may belong to any process.
    """
    try:
        pid, _, _, port, sockets = (data / "postmaster.pid").read_text().splitlines()[:5]
        return int(pid) if _listens(f"{sockets}/.s.PGSQL.{port}") else None
    except (FileNotFoundError, ValueError):
        return None


def _listens(address: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(address)
        except BlockingIOError:  # its queue of callers is full
            return True
        except OSError:
            return False
    return True


def _initialise(request: Request, *, lock: int) -> None:
    unfinished = request.data.with_name(f"{DATA}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    initdb = _launch(_initdb_command(request, unfinished), lock=lock)
    if initdb.wait() != 0:
        raise Failure(f"initdb failed with status {initdb.returncode}")
    unfinished.rename(request.data)
    _sync(request.data.parent)


def _sync(directory: Path) -> None:
    opened = os.open(directory, os.O_RDONLY)
    os.fsync(opened)
    os.close(opened)


def _initdb_command(request: Request, data: Path) -> list[str]:
    locale = ["--locale=C", "--encoding=UTF8"]
    if request.major >= 18:
        locale += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    access = ["--username=postgres", "--auth-local=trust", "--auth-host=reject"]
    return [f"{request.binaries}/initdb", f"--pgdata={data}", *access, *locale, "--no-instructions"]


def _refuse_other_version(request: Request) -> None:
    found = (request.data / "PG_VERSION").read_text().strip()
    if found != str(request.major):
        raise Failure(
            f"{request.data} was made by PostgreSQL {found}, and the one in {request.binaries} is {request.version}: "
            f"give another directory, or point SQLSTREAMS_PG_BIN at a PostgreSQL {found}"
        )


def _clear_after_a_crash(data: Path, sockets: Path) -> None:
    # PostgreSQL refuses to start when a process id in these files has come to belong to some other process. We have
    # postgres.lock, so none of ours runs; only a server started by hand could.
    if stranger := _listening_postmaster(data):
        raise Failure(f"PostgreSQL was started by hand in {data}, as process {stranger}: stop it first")
    for leftover in (data / "postmaster.pid", sockets / _SOCKET, sockets / f"{_SOCKET}.lock"):
        leftover.unlink(missing_ok=True)


def _socket_directory(directory: Path) -> Path:
    """Return where to put the socket: the server's directory, or one in /tmp when that one cannot hold it."""
    if _can_hold_sockets(directory):
        return directory
    digest = hashlib.sha256(os.fsencode(directory)).hexdigest()[:12]
    name = f"sqlstreams-{os.geteuid()}-{digest}"
    return _private_directory(Path("/tmp", name))  # noqa: S108 - the shortest place there is, checked before use


def _can_hold_sockets(directory: Path) -> bool:
    # The path may be too long, the file system may know no sockets, and commas and quotes have a meaning in lists.
    if not str(directory).isascii() or any(sign in str(directory) for sign in ',"'):
        return False
    place = directory / ".s.probe.5432"  # as long as the true name
    place.unlink(missing_ok=True)
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.bind(str(place))
    except OSError:
        return False
    place.unlink()
    return True


def _private_directory(path: Path) -> Path:
    # The name can be foreseen, so in /tmp somebody else may have taken it.
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077:
        return path
    return _private_directory(path.with_name(f"{path.name}-{os.urandom(4).hex()}"))


def _remove_if_empty(directory: Path) -> None:
    with contextlib.suppress(OSError):
        directory.rmdir()


def _postgres_command(request: Request, sockets: Path) -> list[str]:
    private = {
        "listen_addresses": "",
        "port": "5432",
        "unix_socket_directories": str(sockets),
        "unix_socket_permissions": "0700",
    }
    settings = private | _DEFAULTS | request.settings
    options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    return [f"{request.binaries}/postgres", "-D", str(request.data), *options]


def _launch(command: list[str], *, lock: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        pass_fds=[lock],
        preexec_fn=_end_with_supervisor(),  # noqa: PLW1509 - no thread is running yet
    )


def _end_with_supervisor() -> Callable[[], None] | None:
    if (prctl := _prctl) is None:
        return None
    supervisor = os.getpid()

    def ask() -> None:
        # After the change of user, which would clear the wish.
        prctl(_PR_SET_PDEATHSIG, signal.SIGINT)
        if os.getppid() != supervisor:
            os._exit(1)

    return ask


def _await_ready(postgres: subprocess.Popen[bytes], data: Path) -> None:
    # Without a limit: recovery after a crash takes as long as it takes, and goes on when its user has lost patience.
    while _status(data) != "ready":
        if postgres.poll() is not None:
            raise Failure(f"PostgreSQL ended with status {postgres.returncode} before it was ready")
        time.sleep(POLL)


def _status(data: Path) -> str:
    try:
        return (data / "postmaster.pid").read_text().splitlines()[7].strip()
    except (FileNotFoundError, IndexError):
        return ""


def _state(request: Request, sockets: Path) -> Mapping[str, object]:
    return {
        "socket_directory": str(sockets),
        "version": request.version,
        "settings": _DEFAULTS | request.settings,
        "supervisor": os.getpid(),
    }


def _publish(file: Path, state: Mapping[str, object]) -> None:
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(state))
    unfinished.replace(file)


def _await_reason_to_stop(postgres: subprocess.Popen[bytes], *, users: int) -> str:
    reasons: SimpleQueue[str] = SimpleQueue()

    def watch(wait: Callable[[], object], reason: str) -> None:
        try:
            wait()
        finally:
            reasons.put(reason)

    def last_user_gone() -> None:
        fcntl.flock(users, fcntl.LOCK_EX)

    for wait, reason in (last_user_gone, "nobody uses it"), (postgres.wait, "it ended by itself"):
        threading.Thread(target=watch, args=(wait, reason), daemon=True).start()
    return reasons.get()


if __name__ == "__main__":
    main()
