"""The wheel holds the three packages whole and nothing else, and what is installed beside them is pinned."""

import re
import shutil
import subprocess
import sys
import tomllib
from configparser import ConfigParser
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
ROOMS = {
    "sqlstreams": ROOT / "sqlstreams",
    "sqlstreams_cli": ROOT / "cli" / "sqlstreams_cli",
    "sqlstreams_migrations": ROOT / "migrations",
}
SHIPPED = {".py", ".sql", ".ndjson", ".typed"}
NOT_COPIED = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy, so that the tree stays clean."""
    copy = tmp_path_factory.mktemp("packaging") / "copy"
    shutil.copytree(ROOT, copy, ignore=NOT_COPIED)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", "dist"]
    run = subprocess.run(build, cwd=copy, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    (built,) = (copy / "dist").iterdir()
    return built


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    with ZipFile(wheel) as archive:
        return set(archive.namelist())


def read(wheel: Path, name: str) -> bytes:
    with ZipFile(wheel) as archive:
        (path,) = (path for path in archive.namelist() if path.endswith(f".dist-info/{name}"))
        return archive.read(path)


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    return message_from_bytes(read(wheel, "METADATA"))


def shipped_files() -> set[str]:
    return {
        f"{package}/{path.relative_to(room).as_posix()}"
        for package, room in ROOMS.items()
        for path in room.rglob("*")
        if path.suffix in SHIPPED
    }


def test_every_file_of_the_three_rooms_is_in_the_wheel_and_no_other(names: set[str]) -> None:
    packed = {name for name in names if ".dist-info/" not in name}

    assert packed == shipped_files()


def test_the_wheel_carries_its_types_and_its_license(wheel: Path, names: set[str], metadata: Message) -> None:
    assert {"sqlstreams/py.typed", "sqlstreams_cli/py.typed"} <= names
    assert read(wheel, "licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    assert metadata["License-Expression"] == "Apache-2.0"


def test_the_wheel_brings_the_sqlstreams_command(wheel: Path) -> None:
    entry_points = ConfigParser()
    entry_points.read_string(read(wheel, "entry_points.txt").decode())

    assert dict(entry_points["console_scripts"]) == {"sqlstreams": "sqlstreams_cli.main:main"}


def test_every_subpackage_is_listed_in_pyproject() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    in_the_tree = {
        ".".join([package, *path.parent.relative_to(room).parts])
        for package, room in ROOMS.items()
        for path in room.rglob("*")
        if path.suffix in SHIPPED
    }

    assert set(pyproject["tool"]["setuptools"]["packages"]) == in_the_tree


def test_the_migrations_package_holds_no_code() -> None:
    assert [path.name for path in ROOMS["sqlstreams_migrations"].rglob("*.py")] == ["__init__.py"]


REQUIREMENTS = sorted((ROOT / "requirements").iterdir())
PINNED = [path for path in REQUIREMENTS if path.suffix == ".txt"]


@pytest.mark.parametrize("path", REQUIREMENTS, ids=lambda path: path.name)
def test_requirements_name_no_index_and_no_host(path: Path) -> None:
    text = path.read_text(encoding="utf-8")

    assert not re.search(r"://|file:|@|--(index|extra-index|find-links|trusted-host)|^-[if]\b", text, re.MULTILINE)


@pytest.mark.parametrize("path", PINNED, ids=lambda path: path.name)
def test_every_pinned_requirement_has_its_hash(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    requirements = [line for line in lines if line and not line.lstrip().startswith("#")]

    assert requirements
    assert all(re.match(r"[a-z0-9-]+==\S+ +--hash=sha256:", line) for line in requirements)


def pins(name: str) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", (ROOT / "requirements" / name).read_text(encoding="utf-8"), re.M))


def test_both_lists_pin_the_same_version_of_what_they_share() -> None:
    assert pins("runtime.txt").items() <= pins("dev.txt").items()


def test_the_pins_satisfy_what_the_project_and_its_extras_ask_for(metadata: Message) -> None:
    pinned = pins("dev.txt")
    asked = [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]

    assert [str(one) for one in asked if not one.specifier.contains(pinned[one.name])] == []
