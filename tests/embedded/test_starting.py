"""A server starts quickly and whole, is shared by those who ask for it, and says clearly why when it cannot start."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

from sqlstreams import embedded
from sqlstreams.embedded import _directory
from sqlstreams.errors import EmbeddedUnavailable, InvalidInput
from tests.embedded.processes import User, eventually, lives, postmaster_of, runs, start_as_owner

StartUser = Callable[..., User]


def test_three_processes_that_start_at_once_share_one_server(new_home: Path, start_user: StartUser) -> None:
    users = [start_user(new_home) for _ in range(3)]

    told = [user.told() for user in users]

    assert len({each.url for each in told}) == 1
    assert sorted(each.joined for each in told) == [False, True, True]
    assert (new_home / "server.log").read_text().count("database system is ready") == 1


def test_a_server_tells_which_processes_use_it(home: Path, start_user: StartUser) -> None:
    with embedded.serve(home) as server:
        other = start_user(home)
        other.told()
        assert server.users() == tuple(sorted((os.getpid(), other.process.pid)))

        other.finish()
        assert server.users() == (os.getpid(),)


def test_what_was_written_is_there_after_a_restart(home: Path) -> None:
    with embedded.serve(home) as server, psycopg.connect(server.url) as connection:
        connection.execute("drop table if exists memory")
        connection.execute("create table memory as select 42 as answer")

    with embedded.serve(home) as server, psycopg.connect(server.url) as connection:
        assert connection.execute("select answer from memory").fetchone() == (42,)


def test_a_restarted_server_has_the_same_url(home: Path) -> None:
    with embedded.serve(home) as server:
        url = server.url

    with embedded.serve(home) as server:
        assert server.url == url


def test_a_server_is_durable_and_private_and_has_room_for_tests(home: Path) -> None:
    with embedded.serve(home) as server, psycopg.connect(server.url) as connection:
        assert _setting(connection, "server_version").split()[0] == server.version
        assert _setting(connection, "fsync") == "on"
        assert _setting(connection, "listen_addresses") == ""
        assert _setting(connection, "max_connections") == "200"
        assert _setting(connection, "max_prepared_transactions") == "10"
        assert _setting(connection, "server_encoding") == "UTF8"
        assert _setting(connection, "timezone") == "UTC"
        assert stat.S_IMODE(home.stat().st_mode) == 0o700
        assert stat.S_IMODE((home / ".s.PGSQL.5432").stat().st_mode) == 0o700


def test_from_18_on_letters_beyond_ascii_have_cases_whatever_the_systems_locale(home: Path) -> None:
    with embedded.serve(home) as server, psycopg.connect(server.url) as connection:
        if connection.info.server_version < 180000:
            pytest.skip("the locale that comes with PostgreSQL itself is younger")
        assert connection.execute("select lower('ÄÖ')").fetchone() == ("äö",)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows the environment of a process as a file")
def test_the_callers_environment_does_not_reach_the_server(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPORT", "1")
    monkeypatch.setenv("PASSWORD", "secret")

    with embedded.serve(home) as server, psycopg.connect(server.url) as connection:
        assert connection.execute("select 1").fetchone() == (1,)
        assert b"secret" not in Path(f"/proc/{postmaster_of(home)}/environ").read_bytes()


def test_settings_are_given_to_postgresql(home: Path) -> None:
    settings = {"work_mem": "5MB", "max_connections": "20"}

    with embedded.serve(home, settings=settings) as server, psycopg.connect(server.url) as connection:
        assert _setting(connection, "work_mem") == "5MB"
        assert _setting(connection, "max_connections") == "20"


def test_a_running_server_is_shared_only_by_those_content_with_its_settings(home: Path) -> None:
    with embedded.serve(home, settings={"work_mem": "5MB"}):
        with embedded.serve(home) as joined, embedded.serve(home, settings={"work_mem": "5MB"}) as same:
            assert joined.url == same.url

        with pytest.raises(EmbeddedUnavailable, match="runs already, with work_mem = 5MB and not 6MB"):
            embedded.serve(home, settings={"work_mem": "6MB"})


@pytest.mark.parametrize("name", ["port", "listen_addresses", "unix_socket_directories"])
def test_the_settings_by_which_a_server_is_found_are_refused(name: str, home: Path) -> None:
    with pytest.raises(InvalidInput, match=f"settings must not contain '{name}'"):
        embedded.serve(home, settings={name: "1"})


def test_a_server_that_does_not_start_shows_the_end_of_its_log(home: Path) -> None:
    with pytest.raises(EmbeddedUnavailable) as refused:
        embedded.serve(home, settings={"work_mem": "plenty"})

    assert 'invalid value for parameter "work_mem": "plenty"' in str(refused.value)
    assert str(home / "server.log") in str(refused.value)
    eventually(lambda: not runs(home))


def test_without_a_directory_the_server_lives_in_the_users_own_by_major_version(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(place))
    monkeypatch.setattr(_directory, "SYSTEM_DATA", place)

    with embedded.serve() as server:
        assert server.directory == place / "sqlstreams" / f"pg{server.version.split('.')[0]}"


def test_data_of_another_major_version_is_refused(home: Path) -> None:
    with embedded.serve(home):
        pass
    version = home / "data" / "PG_VERSION"
    true_version = version.read_text()
    version.write_text("9\n")

    with pytest.raises(EmbeddedUnavailable, match=r"was made by PostgreSQL 9, and the one in .* is "):
        embedded.serve(home)
    version.write_text(true_version)


@pytest.mark.parametrize("name", ["long" * 30, "comma,comma", "größe"])
def test_a_path_that_cannot_hold_the_socket_is_served_by_one_in_a_private_directory(
    name: str, home: Path, place: Path
) -> None:
    with embedded.serve(home.rename(place / name)) as server, psycopg.connect(server.url) as connection:
        sockets = _sockets_of(server)
        assert sockets.parent == Path("/tmp")
        assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
        assert connection.execute("select 1").fetchone() == (1,)

    assert not sockets.exists()


def test_a_directory_that_somebody_else_prepared_for_the_socket_is_not_used(home: Path, place: Path) -> None:
    directory = home.rename(place / ("long" * 30))
    with embedded.serve(directory) as server:
        foreseen = _sockets_of(server)
    foreseen.mkdir()
    foreseen.chmod(0o777)
    try:
        with embedded.serve(directory) as server, psycopg.connect(server.url) as connection:
            assert _sockets_of(server) != foreseen
            assert connection.execute("select 1").fetchone() == (1,)
        assert list(foreseen.iterdir()) == []
    finally:
        foreseen.rmdir()


@pytest.mark.parametrize("name", ["with spaces & signs %41", "it's"])
def test_a_path_may_contain_signs_that_mean_something_elsewhere(name: str, home: Path, place: Path) -> None:
    with embedded.serve(home.rename(place / name)) as server, psycopg.connect(server.url) as connection:
        assert _sockets_of(server) == place / name
        assert connection.execute("select 1").fetchone() == (1,)


def test_a_directory_with_other_things_in_it_is_refused_and_left_alone(new_home: Path) -> None:
    new_home.mkdir(mode=0o755)
    (new_home / "thesis.txt").touch()
    before = new_home.stat()

    with pytest.raises(EmbeddedUnavailable, match=f"{new_home} (holds something else|belongs to another user)"):
        embedded.serve(new_home)

    assert (new_home.stat().st_mode, new_home.stat().st_uid) == (before.st_mode, before.st_uid)
    assert [file.name for file in new_home.iterdir()] == ["thesis.txt"]


def test_a_directory_that_cannot_be_made_is_refused(new_home: Path) -> None:
    new_home.touch()

    with pytest.raises(EmbeddedUnavailable, match=f"cannot use {new_home}/pg for the embedded server: Not a directory"):
        embedded.serve(new_home / "pg")


def test_an_initialisation_that_was_cut_short_is_begun_again(new_home: Path, start_user: StartUser) -> None:
    user = start_user(new_home)
    eventually((new_home / "data.unfinished").exists)
    for pid in _supervisors(new_home):
        os.kill(pid, signal.SIGKILL)
    user.kill()
    assert not (new_home / "data").exists()

    with embedded.serve(new_home) as server, psycopg.connect(server.url) as connection:
        assert connection.execute("select 1").fetchone() == (1,)
    assert not (new_home / "data.unfinished").exists()


def test_the_start_goes_on_without_the_process_that_asked_for_it(home: Path, start_user: StartUser) -> None:
    shutil.rmtree(home / "data")
    left_by_a_killed_supervisor = {"socket_directory": "/nowhere", "version": "0", "settings": {}, "supervisor": 1}
    (home / "server.json").write_text(json.dumps(left_by_a_killed_supervisor))
    first = start_user(home)
    eventually((home / "data.unfinished").exists)
    first.kill()

    with embedded.serve(home) as server, psycopg.connect(server.url) as connection:
        assert server.joined
        assert connection.execute("select 1").fetchone() == (1,)


def test_process_ids_left_by_a_crash_do_not_prevent_the_next_start(home: Path) -> None:
    with embedded.serve(home):
        left = (home / "data" / "postmaster.pid").read_text()
    with start_as_owner(home, "sleep", "60") as bystander:
        left = left.replace(left.split()[0], str(bystander.pid))
        (home / "data" / "postmaster.pid").write_text(left)
        (home / ".s.PGSQL.5432.lock").write_text(left)
        try:
            with embedded.serve(home) as server, psycopg.connect(server.url) as connection:
                assert connection.execute("select 1").fetchone() == (1,)
            assert lives(bystander.pid)
        finally:
            bystander.kill()


def test_a_server_started_by_hand_in_the_same_data_is_not_touched(home: Path) -> None:
    postgres = embedded.find_binaries() / "postgres"
    with start_as_owner(home, postgres, "-D", home / "data", "-c", "listen_addresses=", "-k", home) as by_hand:
        eventually((home / ".s.PGSQL.5432").exists)
        try:
            with pytest.raises(EmbeddedUnavailable, match=f"started by hand in {home}/data, as process {by_hand.pid}"):
                embedded.serve(home)
            assert lives(by_hand.pid)
        finally:
            by_hand.send_signal(signal.SIGINT)


def test_a_long_log_is_put_aside(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with embedded.serve(home):
        pass
    with (home / "server.log").open("ab") as log:
        log.truncate(11 * 1024 * 1024)

    with embedded.serve(home):
        assert (home / "server.log").stat().st_size < 1024 * 1024
        assert (home / "server.log.old").exists()


@pytest.mark.parametrize("binaries", sorted(Path("/usr/lib/postgresql").glob("*/bin")), ids=str)
def test_the_servers_of_the_systems_packages_can_be_used(
    binaries: Path, new_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQLSTREAMS_PG_BIN", str(binaries))

    with embedded.serve(new_home) as server, psycopg.connect(server.url) as connection:
        assert server.version.split(".")[0] == binaries.parent.name
        assert connection.execute("select 1").fetchone() == (1,)


def test_a_first_start_takes_seconds_and_later_ones_a_fraction(new_home: Path) -> None:
    # Three and a half a second on an idle machine; a machine busy with other tests gets three times as long.
    assert _duration(new_home) < 9.0
    assert min(_duration(new_home) for _ in range(3)) < 1.5


def _setting(connection: psycopg.Connection, name: str) -> str:
    row = connection.execute("select current_setting(%s)", [name]).fetchone()
    assert row is not None
    return str(row[0])


def _sockets_of(server: embedded.Server) -> Path:
    return Path(parse_qs(urlsplit(server.url).query)["host"][0])


def _supervisors(home: Path) -> list[int]:
    shown = subprocess.run(["ps", "-eo", "pid=,args="], capture_output=True, text=True, check=True).stdout
    return [int(line.split()[0]) for line in shown.splitlines() if line.endswith(f"_supervisor.py {home}")]


def _duration(home: Path) -> float:
    begin = time.perf_counter()
    with embedded.serve(home):
        return time.perf_counter() - begin
