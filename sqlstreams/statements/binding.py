"""Statements of bindings: sql/binding.sql."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from msgspec import Struct

from sqlstreams.model import BindingDeclaration
from sqlstreams.statements.statement import Identified, Nothing, Statement, nothing, of_system


class InForce(Struct, frozen=True):
    """The bindings of a group that claims go by."""

    bindings: list[str]
    bound_at: datetime
    bound_by: str


def _declaration(bindings: list[str], *columns: Any) -> BindingDeclaration:
    return BindingDeclaration(tuple(bindings), *columns)


def lock_bindings(schema: str, *, group_id: int) -> Statement[Identified]:
    return of_system("lock_bindings", schema, Identified, {"group_id": group_id})


def list_declarations(schema: str, *, group_id: int) -> Statement[BindingDeclaration]:
    return of_system("list_declarations", schema, _declaration, {"group_id": group_id})


def hold_bindings(
    schema: str, *, token: UUID, group_id: int, instance_id: int, bindings: Sequence[str]
) -> Statement[Nothing]:
    parameters = {"token": token, "group_id": group_id, "instance_id": instance_id, "bindings": list(bindings)}
    return of_system("hold_bindings", schema, nothing, parameters)


def drop_bindings(schema: str, *, token: UUID) -> Statement[Nothing]:
    return of_system("drop_bindings", schema, nothing, {"token": token})


def insert_waiting_bindings(schema: str, *, group_id: int, bindings: Sequence[str]) -> Statement[Nothing]:
    parameters = {"group_id": group_id, "bindings": list(bindings)}
    return of_system("insert_waiting_bindings", schema, nothing, parameters)


def delete_waiting_bindings(schema: str, *, group_id: int) -> Statement[Nothing]:
    return of_system("delete_waiting_bindings", schema, nothing, {"group_id": group_id})


def update_bindings(schema: str, *, group_id: int, bindings: Sequence[str]) -> Statement[Nothing]:
    return of_system("update_bindings", schema, nothing, {"group_id": group_id, "bindings": list(bindings)})


def bind_group(schema: str, *, group_id: int, patterns: list[str] | None) -> Statement[Nothing]:
    return of_system("bind_group", schema, nothing, {"group_id": group_id, "patterns": patterns})


def get_bindings(schema: str, *, group_id: int) -> Statement[InForce]:
    return of_system("get_bindings", schema, InForce, {"group_id": group_id})
