"""What the migrations make, written down so that it can be read, compared and reviewed.

`python -m tests.migrations.dump` writes it into schema.sql again, from an embedded server of its own.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import LiteralString

import psycopg
from psycopg.rows import tuple_row

from sqlstreams import Client, embedded
from tests.support import Note

FILE = Path(__file__).with_name("schema.sql")

_RELATIONS: LiteralString = """
select c.oid::bigint, c.relkind::text, c.relname,
       coalesce(' partition by ' || pg_get_partkeydef(c.oid), '')
       || coalesce(' partition of ' || (select inhparent::regclass::text from pg_inherits where inhrelid = c.oid) || ' '
                   || pg_get_expr(c.relpartbound, c.oid), '')
       || coalesce(' with (' || array_to_string(c.reloptions, ', ') || ')', '')
  from pg_class c
 where c.relnamespace = 'sqlstreams'::regnamespace
   and c.relkind in ('r', 'p', 'S', 'v')
 order by c.relname collate "C"
"""
_COLUMNS: LiteralString = """
select a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
       || case when a.attnotnull then ' not null' else '' end
       || case a.attidentity when 'a' then ' generated always as identity' else '' end
       || coalesce(' default ' || pg_get_expr(d.adbin, d.adrelid), '')
       || coalesce('  -- ' || col_description(a.attrelid, a.attnum), '')
  from pg_attribute a
  left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
 where a.attrelid = %s::oid
   and a.attnum > 0
   and not a.attisdropped
 order by a.attnum
"""
_CONSTRAINTS: LiteralString = """
select 'constraint ' || conname || ' ' || pg_get_constraintdef(oid)
  from pg_constraint
 where conrelid = %s::oid
   and contype <> 'n'  -- PostgreSQL 18 has rows for not null, too
 order by conname collate "C"
"""
_INDEXES: LiteralString = """
select pg_get_indexdef(indexrelid)
  from pg_index
 where indrelid = %s::oid
 order by indexrelid::regclass::text collate "C"
"""
_SEQUENCE: LiteralString = """
select 'as ' || format_type(seqtypid, null) || ' start ' || seqstart || ' increment ' || seqincrement
       || ' cache ' || seqcache
  from pg_sequence
 where seqrelid = %s::oid
"""
_VIEW: LiteralString = "select pg_get_viewdef(%s::oid, true)"
_FUNCTIONS: LiteralString = """
select pg_get_functiondef(oid)
  from pg_proc
 where pronamespace = 'sqlstreams'::regnamespace
 order by oid::regprocedure::text collate "C"
"""
_TRIGGERS: LiteralString = """
select pg_get_triggerdef(oid)
  from pg_trigger
 where tgrelid = %s::oid
   and not tgisinternal
 order by tgname collate "C"
"""
_KINDS = {"r": "table", "p": "table", "S": "sequence", "v": "view"}


def dump(url: str) -> str:
    """Return all that is in schema sqlstreams of a database, in an order of its own."""
    with psycopg.connect(url, autocommit=True, row_factory=tuple_row) as connection:
        connection.execute("set search_path to pg_catalog")

        def lines(query: LiteralString, *parameters: object) -> list[str]:
            return [line for (line,) in connection.execute(query, parameters or None).fetchall()]

        parts = []
        for oid, kind, name, options in connection.execute(_RELATIONS).fetchall():
            heading = f"{_KINDS[kind]} {name}{options}"
            if kind == "S":
                parts.append([f"{heading} {lines(_SEQUENCE, oid)[0]}"])
            else:
                inside = lines(_COLUMNS, oid) + lines(_CONSTRAINTS, oid)
                behind = lines(_VIEW, oid) if kind == "v" else lines(_INDEXES, oid) + lines(_TRIGGERS, oid)
                parts.append([heading, *(f"    {line}" for line in inside), *behind])
        parts += [[line] for line in lines(_FUNCTIONS)]
    return "\n\n".join("\n".join(part).rstrip() for part in parts) + "\n"


def install(url: str) -> None:
    """Install into an empty database, with one stream."""
    with Client(url) as client:
        client.stream("notes", Note).register()


def main() -> None:
    """Write schema.sql."""
    directory = Path(tempfile.mkdtemp(prefix="sqlstreams-dump-"))
    directory.chmod(0o755)
    try:
        with embedded.serve(directory / "pg") as server:
            install(server.url)
            FILE.write_text(dump(server.url), encoding="utf-8")
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
