"""A server ends with its last user, however that one ends, and never before."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from sqlstreams import embedded
from sqlstreams.embedded import _supervisor
from tests.embedded.processes import (
    DEADLINE,
    User,
    eventually,
    frozen,
    is_locked,
    lives,
    postmaster_of,
    runs,
    supervisor_of,
)

StartUser = Callable[..., User]

ONLY_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent died")


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(User.finish, id="a normal exit"),
        pytest.param(lambda user: user.send(signal.SIGTERM), id="SIGTERM"),
        pytest.param(User.kill, id="SIGKILL"),
    ],
)
def test_nothing_is_left_when_the_only_user_ends_by(
    end: Callable[[User], object], home: Path, start_user: StartUser
) -> None:
    user = start_user(home)
    user.told()
    processes = supervisor_of(home), postmaster_of(home)

    end(user)

    eventually(lambda: not runs(home))
    eventually(lambda: not any(map(lives, processes)))


def test_the_other_users_go_on_when_one_is_killed(home: Path, start_user: StartUser) -> None:
    one, other = start_user(home), start_user(home)
    urls = {one.told().url, other.told().url}

    one.kill()

    # A server told to stop would refuse new connections.
    assert len(urls) == 1
    with psycopg.connect(urls.pop()) as connection:
        assert connection.execute("select 1").fetchone() == (1,)
    assert runs(home)
    other.finish()
    eventually(lambda: not runs(home))


def test_nothing_is_left_when_all_users_are_killed_together(home: Path, start_user: StartUser) -> None:
    users = [start_user(home) for _ in range(3)]
    for user in users:
        user.told()

    for user in users:
        user.process.kill()

    eventually(lambda: not runs(home))


@ONLY_LINUX
def test_nothing_is_left_when_the_users_and_the_supervisor_are_killed_together(
    home: Path, start_user: StartUser
) -> None:
    user = start_user(home)
    user.told()
    processes = supervisor_of(home), postmaster_of(home)

    os.kill(processes[0], signal.SIGKILL)
    user.process.kill()

    eventually(lambda: not any(map(lives, processes)))
    assert not runs(home)


@ONLY_LINUX
def test_the_server_ends_when_its_supervisor_is_killed_and_the_next_start_finds_the_data(home: Path) -> None:
    with embedded.serve(home) as server:
        _remember(server.url, "kept")
        postmaster = postmaster_of(home)

        os.kill(supervisor_of(home), signal.SIGKILL)

        eventually(lambda: not lives(postmaster))
        with embedded.serve(home) as successor:
            assert not successor.joined
            assert _remembered(successor.url) == ["kept"]


def test_an_orphan_is_stopped_by_the_next_start(home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    deaf = tmp_path / "supervisor.py"
    source = Path(_supervisor.__file__).read_text()
    deaf.write_text(source.replace("_prctl = ctypes.CDLL(None).prctl", "_prctl = None"))
    monkeypatch.setattr(_supervisor, "__file__", str(deaf))
    with embedded.serve(home) as server:
        _remember(server.url, "kept")
        supervisor, orphan = supervisor_of(home), postmaster_of(home)
        os.kill(supervisor, signal.SIGKILL)
        eventually(lambda: not is_locked(home / "supervisor.lock"))
        assert lives(orphan)

        with embedded.serve(home) as successor:
            assert not successor.joined
            assert not lives(orphan)
            assert _remembered(successor.url) == ["kept"]


def test_when_postgresql_is_killed_the_next_user_gets_a_new_server_with_what_was_committed(home: Path) -> None:
    with embedded.serve(home) as server:
        _remember(server.url, "kept")
        os.kill(postmaster_of(home), signal.SIGKILL)
        eventually(lambda: not runs(home))

        with embedded.serve(home) as successor:
            assert not successor.joined
            assert _remembered(successor.url) == ["kept"]


def test_a_user_who_arrives_while_the_server_stops_gets_the_next_one(home: Path, start_user: StartUser) -> None:
    first = start_user(home)
    first.told()
    supervisor = supervisor_of(home)
    with frozen(postmaster_of(home)):
        first.kill()
        eventually(lambda: not (home / "server.json").exists())
        second = start_user(home)
        eventually(lambda: is_locked(home / "start.lock"))
        assert lives(supervisor)

    told = second.told()

    assert not told.joined
    assert supervisor_of(home) != supervisor
    with psycopg.connect(told.url) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


def test_closing_the_last_use_returns_when_the_directory_may_be_removed(new_home: Path) -> None:
    with embedded.serve(new_home):
        assert runs(new_home)

    assert not runs(new_home)
    shutil.rmtree(new_home)


def test_closing_leaves_the_server_to_the_others(home: Path, start_user: StartUser) -> None:
    start_user(home).told()
    with embedded.serve(home) as server:
        assert server.joined

    assert runs(home)
    with psycopg.connect(server.url) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


def test_closing_ends_the_use_also_when_the_directory_has_gone_and_only_once(home: Path, place: Path) -> None:
    server = embedded.serve(home)
    supervisor = supervisor_of(home)
    gone = home.rename(place / "gone")

    server.close()
    server.close()

    assert server.users() == ()
    eventually(lambda: not runs(gone))
    eventually(lambda: not lives(supervisor))


def test_forgetting_the_server_does_not_end_it(home: Path, start_user: StartUser) -> None:
    user = start_user(
        home, then="del server\nprint(embedded.serve(Path(sys.argv[1])).joined, flush=True)\nsys.stdin.read()"
    )
    user.told()

    assert user.line() == b"True\n"


def test_a_program_started_by_a_user_does_not_keep_the_server(home: Path, start_user: StartUser) -> None:
    user = start_user(
        home, then="subprocess.Popen(['cat'], close_fds=False)\nprint('started', flush=True)\nsys.stdin.read()"
    )
    user.told()
    user.line()

    user.kill()

    # The program still runs: it ends with our end of its stdin.
    eventually(lambda: not runs(home))


def test_a_forked_copy_of_a_user_keeps_the_server(home: Path, start_user: StartUser) -> None:
    user = start_user(home, then="os.fork()\nos.write(1, b'here\\n')\nsys.stdin.read()")
    url = user.told().url
    assert [user.line(), user.line()] == [b"here\n", b"here\n"]

    user.kill()

    with psycopg.connect(url) as connection:
        assert connection.execute("select 1").fetchone() == (1,)
    user.finish()
    eventually(lambda: not runs(home))


def test_an_interrupt_from_the_terminal_leaves_the_user_its_server(home: Path, start_user: StartUser) -> None:
    at_interrupt = "signal.signal(signal.SIGINT, lambda *_: print('interrupted', flush=True))\n"
    user = start_user(home, then=at_interrupt + "print('prepared', flush=True)\nsys.stdin.read()")
    url = user.told().url
    assert user.line() == b"prepared\n"

    user.send(signal.SIGINT)

    assert user.line() == b"interrupted\n"
    with psycopg.connect(url) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


def test_a_supervisor_that_is_told_to_end_stops_the_server_first(home: Path) -> None:
    with embedded.serve(home):
        postmaster = postmaster_of(home)

        os.kill(supervisor_of(home), signal.SIGTERM)

        eventually(lambda: not runs(home))
        assert not lives(postmaster)
        assert "database system is shut down" in (home / "server.log").read_text()


def test_postgresql_that_does_not_stop_is_stopped_by_harsher_means() -> None:
    ignores_one = "signal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGQUIT, signal.SIG_DFL)"
    stubborn = f"import signal; {ignores_one}; print(flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", stubborn], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()

        _supervisor.stop(process, ((signal.SIGINT, 0.05), (signal.SIGQUIT, DEADLINE)))

        assert process.returncode == -signal.SIGQUIT


def _remember(url: str, text: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("drop table if exists memory")
        connection.execute("create table memory (text text)")
        connection.execute("insert into memory values (%s)", [text])


def _remembered(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        return [text for (text,) in connection.execute("select text from memory")]
