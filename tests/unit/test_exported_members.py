"""The public names, and that the blocking and the async client are two faces of one thing."""

from __future__ import annotations

import inspect
from types import FunctionType, ModuleType
from typing import Any

import pytest

import sqlstreams

PAIRS = [
    (sqlstreams.Client, sqlstreams.AsyncClient),
    (sqlstreams.System, sqlstreams.AsyncSystem),
    (sqlstreams.Stream, sqlstreams.AsyncStream),
    (sqlstreams.Producer, sqlstreams.AsyncProducer),
    (sqlstreams.Consumer, sqlstreams.AsyncConsumer),
    (sqlstreams.Deadline, sqlstreams.AsyncDeadline),
    (sqlstreams.Scheduler, sqlstreams.AsyncScheduler),
    (sqlstreams.Manager, sqlstreams.AsyncManager),
]
pairs = pytest.mark.parametrize(("blocking", "asynchronous"), PAIRS, ids=[each.__name__ for each, _ in PAIRS])
OPENING = {"__enter__": "__aenter__", "__exit__": "__aexit__"}


def test_every_public_name_is_listed_once_and_in_order() -> None:
    public = {
        name
        for name, value in vars(sqlstreams).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert sorted(public) == sqlstreams.__all__


def test_a_star_import_works() -> None:
    names: dict[str, Any] = {}
    exec("from sqlstreams import *", names)
    assert names.keys() >= set(sqlstreams.__all__)


@pytest.mark.parametrize("name", sqlstreams.__all__)
def test_every_public_name_and_what_it_offers_is_described(name: str) -> None:
    value = getattr(sqlstreams, name)
    assert value.__doc__, name
    if inspect.isclass(value):
        for member, offered in vars(value).items():
            if not member.startswith("_") and isinstance(offered, FunctionType | property):
                assert offered.__doc__, f"{name}.{member}"


def _public(face: type[Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(face).items()
        if isinstance(value, FunctionType | property) and (not name.startswith("_") or name == "__init__")
    }


@pairs
def test_both_faces_have_the_same_names(blocking: type[Any], asynchronous: type[Any]) -> None:
    assert _public(blocking).keys() == _public(asynchronous).keys()
    assert asynchronous.__name__ == f"Async{blocking.__name__}"
    for name, async_name in OPENING.items():
        assert (name in vars(blocking)) == (async_name in vars(asynchronous))


def _spoken(annotation: object) -> str:
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", repr(annotation))
    return text.replace("Async", "")


@pairs
def test_both_faces_take_the_same_arguments(blocking: type[Any], asynchronous: type[Any]) -> None:
    for name, offered in _public(blocking).items():
        other = _public(asynchronous)[name]
        if isinstance(offered, property):
            assert isinstance(other, property)
            continue
        here, there = inspect.signature(offered), inspect.signature(other)
        assert [
            (each.name, each.kind, each.default, _spoken(each.annotation)) for each in here.parameters.values()
        ] == [(each.name, each.kind, each.default, _spoken(each.annotation)) for each in there.parameters.values()], (
            name
        )
        assert _spoken(here.return_annotation) == _spoken(there.return_annotation), name


@pairs
def test_what_waits_on_one_face_is_awaited_on_the_other(blocking: type[Any], asynchronous: type[Any]) -> None:
    for name, offered in _public(blocking).items():
        other = _public(asynchronous)[name]
        handles = {"stream", "producer", "consumer", "deadline", "system", "manager", "scheduler", "transaction"}
        returns_handle = name in handles | {"__init__"}
        awaited = inspect.iscoroutinefunction(other) or inspect.isasyncgenfunction(other)
        assert awaited != returns_handle, name
        assert not inspect.iscoroutinefunction(offered), name


@pairs
def test_both_faces_say_the_same_about_themselves(blocking: type[Any], asynchronous: type[Any]) -> None:
    for name, offered in _public(blocking).items():
        if name not in {"__init__", "close", "consume", "produce", "run"}:
            assert offered.__doc__ == _public(asynchronous)[name].__doc__, name
