"""Finding the handler that `consumer run` is told by name, and the payload type it takes."""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_type_hints

import typer

from sqlstreams import RawPayload
from sqlstreams_cli.failing import Failed


def load_handler(place: str) -> Callable[[Any], Any]:
    """Import the function that `module:function` names, looking in the current directory too."""
    module_name, colon, path = place.partition(":")
    if not (module_name and colon and path):
        raise typer.BadParameter(f"must be module:function, got {place!r}", param_hint="HANDLER")
    found: Any = _import(module_name)
    for name in path.split("."):
        if not hasattr(found, name):
            close = difflib.get_close_matches(name, dir(found), n=1)
            fix = f"did you mean {close[0]}?" if close else None
            raise Failed(f"there is no {name!r} in {module_name}", fix=fix)
        found = getattr(found, name)
    if not callable(found):
        raise Failed(f"{place} is no function but a {type(found).__name__}")
    handler: Callable[[Any], Any] = found
    return handler


def payload_type(handler: Callable[[Any], Any], *, in_list: bool = False) -> Any:
    """Return the type of a handler's first parameter, or of what is in that list; `RawPayload` for nothing or bytes."""
    try:
        parameters = list(inspect.signature(handler).parameters.values())
    except ValueError:  # some functions written in C do not tell
        return RawPayload
    if not parameters or parameters[0].kind is inspect.Parameter.KEYWORD_ONLY:
        raise Failed(f"the handler {_name(handler)} takes no argument, and is called with the payload")
    annotation = _hints(handler).get(parameters[0].name, RawPayload)
    if in_list and annotation is not RawPayload:
        annotation = (get_args(annotation) or (RawPayload,))[0]
    return RawPayload if annotation is bytes else annotation


def _import(module_name: str) -> object:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise Failed(f"there is no module {error.name!r} in {here} nor on the Python path") from None
        raise _broken(module_name, error) from error
    except Exception as error:
        raise _broken(module_name, error) from error


def _broken(module_name: str, error: Exception) -> Failed:
    where = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{where.filename}, line {where.lineno}"
    return Failed(f"importing {module_name} failed: {type(error).__name__}: {error} ({place})")


def _hints(handler: Callable[[Any], Any]) -> dict[str, Any]:
    function = handler if inspect.isroutine(handler) or inspect.isclass(handler) else type(handler).__call__
    try:
        return get_type_hints(function)
    except NameError as error:
        raise Failed(
            f"the annotations of {_name(handler)} cannot be read: {error}",
            fix="import what they name at run time too, not only for type checkers",
        ) from None
    except TypeError:  # of a function written in C
        return {}


def _name(handler: object) -> str:
    return getattr(handler, "__qualname__", repr(handler))
