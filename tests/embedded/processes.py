"""Programs that use an embedded server, and ways to see what runs in a server's directory."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

ROOT = Path(__file__).parents[2]

DEADLINE = 30.0

_PROGRAM = """
import json, os, signal, subprocess, sys
from pathlib import Path
from sqlstreams import embedded

server = embedded.serve(Path(sys.argv[1]))
print(json.dumps({"url": server.url, "joined": server.joined, "users": server.users()}), flush=True)
"""
_UNTIL_STDIN_ENDS = "sys.stdin.read()"


class Told(Struct, frozen=True):
    """What a user prints when it has its server."""

    url: str
    joined: bool
    users: tuple[int, ...]


class User:
    """A process that serves a directory, and then does `then` (by default it waits for the end of its stdin)."""

    def __init__(self, home: Path, *, then: str = _UNTIL_STDIN_ENDS) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM + then, str(home)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))},
            start_new_session=True,
        )

    def told(self) -> Told:
        """Wait until the user has its server."""
        return msgspec.json.decode(self.line(), type=Told)

    def line(self) -> bytes:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def finish(self) -> int:
        """Let the user end normally."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(DEADLINE)

    def send(self, signum: signal.Signals) -> None:
        """Send a signal to the user, as a terminal would also to those of its group."""
        os.killpg(self.process.pid, signum)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE)

    def discard(self) -> None:
        self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


def start_as_owner(home: Path, *command: str | Path) -> subprocess.Popen[bytes]:
    """Start a program as the user who runs the server of a directory."""
    if os.geteuid() != 0:
        return subprocess.Popen(command, stderr=subprocess.DEVNULL)
    owner = home.stat()
    return subprocess.Popen(command, stderr=subprocess.DEVNULL, user=owner.st_uid, group=owner.st_gid, extra_groups=[])


def eventually(claim: Callable[[], object]) -> None:
    """Wait until a claim becomes true, and fail when it does not in time."""
    deadline = time.monotonic() + DEADLINE
    while not claim():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.01)


def is_locked(file: Path) -> bool:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), file.open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def runs(home: Path) -> bool:
    """Tell whether a supervisor or any process of PostgreSQL lives in the directory."""
    return is_locked(home / "supervisor.lock") or is_locked(home / "postgres.lock")


def supervisor_of(home: Path) -> int:
    pid = json.loads((home / "server.json").read_text())["supervisor"]
    assert isinstance(pid, int)
    return pid


def postmaster_of(home: Path) -> int:
    return int((home / "data" / "postmaster.pid").read_text().split()[0])


def lives(pid: int) -> bool:
    """Tell whether a process lives; one that only waits to be reaped does not."""
    return _state(pid) not in ("", "Z")


def _state(pid: int) -> str:
    if sys.platform == "linux":
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return ""
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return shown.stdout.strip()[:1]


@contextlib.contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Keep a process from doing anything while the block runs."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
