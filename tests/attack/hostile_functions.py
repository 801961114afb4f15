"""An attacker's functions and operators, named like those our statements use, for every combination of their types.

A role that may create objects in ``public`` plants them. PostgreSQL prefers an exact match of the argument types
over one that needs a conversion, whatever schema it is in: a call that has no exact match in pg_catalog goes to
theirs. Nobody but the attacker may execute one, so each use fails with "permission denied for function".
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import psycopg

import perdure
from perdure.store.schema.files import bare, history, migrations
from perdure.store.statements import load, render

PACKAGE = Path(perdure.__file__).parent

# The types of our columns, parameters and expressions.
TYPES = (
    *(
        "smallint",
        "integer",
        "bigint",
        "numeric",
        "double precision",
        "text",
        "uuid",
        "timestamptz",
        "interval",
    ),
    *("boolean", "json", "jsonb", "name", "oid", '"char"', "regclass", "smallint[]", "text[]", "uuid[]"),
    *("timestamptz[]", "bigint[]"),
)
# Few functions have a third argument.
FEW = ("text", "integer", "bigint", "boolean")

_LITERAL = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"")
_CALL = re.compile(r"(?P<schema>\.)?\b(?P<name>[a-z_][a-z0-9_]*)\s*\(", re.IGNORECASE)
_OPERATOR = re.compile(r"[-+*/<>=~!@#^&|]+")


def texts() -> Iterator[tuple[str, str]]:
    """Every text we send to PostgreSQL, and where it is from: statements, migrations, SQL in Python code."""
    yield from load("postgres").items()
    yield "history.sql", history("postgres")
    yield from ((one.name, one.text) for one in migrations("postgres"))
    for module in [*PACKAGE.glob("store/**/*.py"), *PACKAGE.glob("cli/bench/*.py")]:
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and _SQL.match(node.value):
                # Shared statements are rendered for each database.
                shared = "perdure." in node.value
                yield module.name, render(node.value, "postgres") if shared else node.value


_SQL = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH|CREATE|pg_catalog\.|WHERE|JOIN|FROM|VALUES)\b")


def calls(text: str) -> Iterator[tuple[str, bool]]:
    """Each name before a parenthesis, and whether it is safe: qualified, or without arguments.

    A call without arguments matches pg_catalog's function exactly, and that schema is searched first.
    """
    code = _code(text)
    for found in _CALL.finditer(code):
        yield (
            found["name"].lower(),
            bool(found["schema"]) or code.startswith(")", code.index("(", found.start()) + 1),
        )


def _code(text: str) -> str:
    return _LITERAL.sub("''", bare(text))


def names() -> tuple[set[str], set[str]]:
    """All words that could be functions or operators; the server knows which ones are."""
    functions: set[str] = set()
    operators: set[str] = set()
    for _, text in texts():
        functions |= {name for name, _ in calls(text)}
        operators |= set(_OPERATOR.findall(_code(text)))
    return functions, operators


def plant(attacker_url: str) -> tuple[set[str], set[str]]:
    """Create every possible one; return the functions and operators for which that worked."""
    functions, operators = names()
    with psycopg.connect(attacker_url, autocommit=True) as attacker:
        attacker.execute("ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC")
        # So that the attacker does not call its own functions.
        attacker.execute("SET search_path = pg_catalog")
        settings = {"functions": functions, "operators": operators, "types": TYPES, "few": FEW}
        for name, values in settings.items():
            attacker.execute("SELECT set_config(%s, %s, false)", [f"hostile.{name}", "\n".join(values)])
        attacker.execute(_PLANT.encode())
        found = attacker.execute(
            "SELECT DISTINCT proname::text FROM pg_proc WHERE pronamespace = 'public'::regnamespace"
        ).fetchall()
        signs = attacker.execute(
            "SELECT DISTINCT oprname::text FROM pg_operator WHERE oprnamespace = 'public'::regnamespace"
        ).fetchall()
    return {name for (name,) in found}, {name for (name,) in signs}


_PLANT = """
DO $do$
DECLARE
    types text[] := string_to_array(current_setting('hostile.types'), E'\\n');
    few text[] := string_to_array(current_setting('hostile.few'), E'\\n');
    functions text[] := string_to_array(current_setting('hostile.functions'), E'\\n');
    operators text[] := string_to_array(current_setting('hostile.operators'), E'\\n');
    body text := 'RETURNS boolean LANGUAGE sql AS $$SELECT true$$';
    name text; kind "char"; arity integer; signature text; one text; other text; returns text;
BEGIN
    FOREACH one IN ARRAY types LOOP
        EXECUTE format('CREATE FUNCTION public.step(boolean, %s) %s', one, body);
    END LOOP;
    FOR name, kind, arity IN
        SELECT p.proname, max(p.prokind), n
          FROM pg_proc p, generate_series(0, 3) n
         WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.proname = ANY (functions)
           AND (n BETWEEN p.pronargs - p.pronargdefaults AND p.pronargs OR p.provariadic <> 0 AND n > 0)
         GROUP BY p.proname, n
    LOOP
        FOR signature IN
            SELECT '' WHERE arity = 0
            UNION ALL SELECT a FROM unnest(types) a WHERE arity = 1
            UNION ALL SELECT concat_ws(', ', a, b) FROM unnest(types) a, unnest(types) b WHERE arity = 2
            UNION ALL SELECT concat_ws(', ', a, b, c) FROM unnest(few) a, unnest(few) b, unnest(few) c WHERE arity = 3
        LOOP
            IF kind = 'a' AND arity = 1 THEN
                EXECUTE format('CREATE AGGREGATE public.%I(%s) (SFUNC = public.step, STYPE = bool)', name, signature);
            ELSE
                EXECUTE format('CREATE FUNCTION public.%I(%s) %s', name, signature, body);
            END IF;
        END LOOP;
        COMMIT;  -- or the locks of thousands of objects fill the server's table of locks
    END LOOP;
    -- Each returns what the true one does, or little more than the first operator of a statement would be reached.
    FOREACH returns IN ARRAY ARRAY['boolean', 'interval', 'text', 'jsonb'] LOOP
        FOR one, other IN SELECT a, b FROM unnest(types) a, unnest(types) b LOOP
            EXECUTE format('CREATE FUNCTION public.%I(%s, %s) RETURNS %s LANGUAGE sql AS $$SELECT NULL::%s$$',
                           'hostile_' || returns, one, other, returns, returns);
        END LOOP;
        COMMIT;
    END LOOP;
    FOR name, one, other IN
        SELECT o, a, b FROM unnest(operators) o, unnest(types) a, unnest(types) b
         WHERE EXISTS (SELECT FROM pg_operator WHERE oprname = o)
    LOOP
        returns := CASE WHEN name IN ('+', '-', '*') THEN 'interval' WHEN name = '->>' THEN 'text'
                        WHEN name = '->' THEN 'jsonb' ELSE 'boolean' END;
        EXECUTE format('CREATE OPERATOR public.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = public.%I)',
                       name, one, other, 'hostile_' || returns);
        COMMIT;
    END LOOP;
END $do$
"""
