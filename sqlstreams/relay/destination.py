"""Where a relay publishes to, as its URL says: the broker, and a template for the subject, queue, stream or topic."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from msgspec import Struct

from sqlstreams.errors import InvalidInput, PublishRefused

FIELDS: Final = ("stream", "key", "routing_key", "schema_version")
_FIELD: Final = re.compile(r"\{([a-z_]+)(?:\|([^{}|]*))?\}")
_SAMPLE: Final = dict.fromkeys(FIELDS, "x")
_HOST: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]]+)(:[0-9]{1,5})?")
_MOST: Final = 1_000

Check = Callable[[str], str | None]
"""Returns what is wrong with the name of a subject, queue, stream or topic, or None."""


class Template:
    """Text with `{field}` or `{field|otherwise}` in it, filled in for each message.

    The fields are `stream`, `key`, `routing_key` and `schema_version`.
    """

    def __init__(self, text: str, *, check: Check) -> None:
        self.text = text
        self._check = check
        self._fields = _FIELD.findall(text)
        if len(text) > _MOST:
            raise InvalidInput("to", f"has a template of {len(text)} characters, and {_MOST} is the most")
        for name, _ in self._fields:
            if name not in FIELDS:
                raise InvalidInput("to", f"knows the fields {', '.join(FIELDS)}, not {name!r}")
        if re.search(r"[{}]", _FIELD.sub("", text)):
            raise InvalidInput("to", f"has braces that are no {{field}} or {{field|otherwise}} in {text!r}")
        if wrong := check(_FIELD.sub(lambda found: _SAMPLE[found[1]], text)):
            raise InvalidInput("to", f"has a template that {wrong}: {text!r}")

    @property
    def varies(self) -> bool:
        """Whether messages of one stream may go to different places."""
        return any(name != "stream" for name, _ in self._fields)

    def fill(self, values: Mapping[str, str | None]) -> str:
        """Return where a message goes; raise `PublishRefused` when its values make no such place."""
        if not self._fields:
            return self.text
        filled = _FIELD.sub(lambda found: self._value(found, values), self.text)
        if wrong := self._check(filled):
            raise PublishRefused(f"the message would go to {filled!r}, which {wrong}")
        return filled

    def _value(self, found: re.Match[str], values: Mapping[str, str | None]) -> str:
        value = values[found[1]]
        if value is None:
            value = found[2]
        if value is None:
            absent = f"{{{found[1]}|otherwise}}"
            raise PublishRefused(f"the message has no {found[1]}, which {self.text!r} needs; {absent} would do without")
        return value


class Address:
    """A relay's URL in parts. Never shown whole: it may hold a password."""

    def __init__(self, to: object) -> None:
        if not isinstance(to, str):
            raise InvalidInput("to", f"must be a URL, got {type(to).__name__}")
        if re.search(r"[\x00-\x20\x7f\ud800-\udfff]", to):
            raise InvalidInput("to", "must be a URL without spaces, control characters and lone surrogates")
        try:
            parts = urlsplit(to)
            self._options = _options(parts)
        except ValueError:
            raise InvalidInput("to", "is not a URL") from None
        self.scheme = parts.scheme
        self.credentials, _, self.hosts = parts.netloc.rpartition("@")
        self.path = unquote(parts.path.removeprefix("/"))
        if wrong := [each for each in self.hosts.split(",") if self.hosts and not _is_host(each)]:
            raise InvalidInput("to", f"must have hosts with ports, such as localhost:4222, got {wrong[0]!r}")
        if not self.hosts:
            raise InvalidInput("to", f"must name a host, such as {self.scheme or 'nats'}://localhost/…")

    @property
    def shown(self) -> str:
        """The URL without what is secret in it."""
        return f"{self.scheme}://{self.hosts}/{self.path}"

    def take(self, name: str, default: str) -> str:
        """Return an option of the URL and strike it off."""
        return self._options.pop(name, default)

    def take_number(self, name: str, *, high: int) -> int:
        """Return an option that is a whole number, 0 when it is absent, and strike it off."""
        text = self.take(name, "0")
        if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) > high:
            raise InvalidInput("to", f"must have a whole number up to {high} as {name}")
        return int(text)

    def take_dotted(self) -> dict[str, str]:
        """Return the options with a dot in their name, and strike them off."""
        return {name: self._options.pop(name) for name in list(self._options) if "." in name}

    def take_nothing_more(self) -> None:
        """Refuse options that nobody took."""
        if self._options:
            raise InvalidInput(
                "to", f"has options that {self.scheme} does not know: {', '.join(sorted(self._options))}"
            )


class Destination(Struct, frozen=True):
    """Where a relay publishes to. `broker` is a plain name, and `shown` the URL without what is secret in it."""

    broker: str
    shown: str
    template: Template


def _is_host(text: str) -> bool:
    found = _HOST.fullmatch(text)
    return found is not None and int((found[2] or ":1")[1:]) < 65_536


def _options(parts: SplitResult) -> dict[str, str]:
    given = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query), max_num_fields=100)
    if parts.fragment or len(dict(given)) != len(given):
        raise ValueError
    return dict(given)
