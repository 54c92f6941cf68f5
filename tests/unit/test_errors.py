"""The tree of errors, their codes, and what `explain` says about them."""

from __future__ import annotations

import builtins
import inspect
import re
from pathlib import Path

import pytest

import sqlstreams
from sqlstreams import errors
from sqlstreams.errors import CATALOGUE, SqlstreamsError, explain

CLASSES = {
    name: each for name, each in vars(errors).items() if inspect.isclass(each) and issubclass(each, SqlstreamsError)
}
EVENTS = sorted(code for code in CATALOGUE if code >= "SQL0100" or code == "SQL0058")
SOURCE = "\n".join(
    path.read_text(encoding="utf-8")
    for path in Path(sqlstreams.__file__).parent.rglob("*.py")
    if path.name != "errors.py"
)


def _drawn() -> dict[str, tuple[str, str | None]]:
    # Each line of the tree: its class, the class above it, and the built-in it is as well.
    above: dict[int, str] = {-1: "SqlstreamsError"}
    drawn = {}
    for line in inspect.cleandoc(errors.__doc__ or "").splitlines():
        if match := re.match(r"    ([ │]*)[├└]─ (\w+)( +([A-Z]\w+Error|[A-Z]\w+Exception))?", line):
            depth = len(match[1])
            above[depth] = match[2]
            parent = above[max(each for each in above if each < depth)]
            drawn[match[2]] = (parent, match[4])
    return drawn


def test_the_tree_is_drawn_as_it_is() -> None:
    drawn = _drawn()
    assert drawn.keys() == CLASSES.keys() - {"SqlstreamsError"}
    for name, (parent, builtin) in drawn.items():
        bases = (CLASSES[parent], getattr(builtins, builtin)) if builtin else (CLASSES[parent],)
        assert CLASSES[name].__bases__ == bases, name


def test_every_error_is_exported() -> None:
    assert CLASSES.keys() <= set(sqlstreams.__all__)


@pytest.mark.parametrize("name", CLASSES)
def test_every_class_has_a_code_of_its_own_with_a_fix(name: str) -> None:
    code = CLASSES[name].code
    assert [each for each, error in CLASSES.items() if error.code == code] == [name]
    assert CATALOGUE[code].fix
    assert re.fullmatch(r"SQL\d{4}", code)


def test_every_code_belongs_to_a_class_or_an_event() -> None:
    assert CATALOGUE.keys() == {each.code for each in CLASSES.values()} | set(EVENTS)


@pytest.mark.parametrize("code", EVENTS)
def test_every_event_is_told_by_the_library(code: str) -> None:
    assert code in SOURCE


@pytest.mark.parametrize("name", sorted(CLASSES.keys() - {"SqlstreamsError", "LeaseLost"}))
def test_every_error_is_raised_by_the_library(name: str) -> None:
    assert re.search(rf"\b{name}\(", SOURCE)


def test_every_code_in_the_source_can_be_looked_up() -> None:
    assert set(re.findall(r"SQL\d{4}", SOURCE)) <= CATALOGUE.keys()


@pytest.mark.parametrize("code", CATALOGUE)
def test_every_diagnosis_is_whole(code: str) -> None:
    diagnosis = CATALOGUE[code]
    assert diagnosis.code == code
    assert diagnosis.title[0].isupper() or diagnosis.title.startswith("sqlstreams")
    assert not diagnosis.title.endswith(".")
    for sentence in (diagnosis.problem, diagnosis.fix):
        assert sentence.endswith("."), sentence


def test_explain_takes_a_code_as_people_type_it() -> None:
    assert explain("SQL0012") is explain(" sql0012\n") is CATALOGUE["SQL0012"]
    assert explain("SQL9999") is None
    assert explain("") is None


def test_an_error_says_what_it_is_about() -> None:
    refused = sqlstreams.InvalidInput("key", "must not be empty")
    assert (str(refused), refused.field, refused.problem) == ("key must not be empty", "key", "must not be empty")
    absent = sqlstreams.NotFound("stream", "notes")
    assert (str(absent), absent.kind, absent.name) == ("there is no stream named 'notes'", "stream", "notes")
