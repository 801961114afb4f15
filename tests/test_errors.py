"""Every error, its code and its category: clients rely on them, so they must not change by accident."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

import perdure
from perdure import errors
from perdure.errors import BadArguments, IdempotencyConflict, PerdureError

ERRORS = """
    PerdureError           perdure.error              internal
    Invalid                request.invalid            invalid
    InvalidConfig          config.invalid             invalid
    InvalidTask            task.invalid               invalid
    InvalidOption          job.invalid_option         invalid
    InvalidLease           worker.invalid_lease       invalid
    BadArguments           job.bad_arguments          invalid
    PayloadTooLarge        job.payload_too_large      invalid
    InvalidWorkflow        workflow.invalid           invalid
    BlockingCall           call.blocking              invalid
    UnsupportedConnection  conn.unsupported           invalid
    Conflict               request.conflict           conflict
    IdempotencyConflict    job.idempotency_conflict   conflict
    GateConflict           workflow.gate_conflicting_completion_retry  conflict
    AppendConflict         workflow.append_conflicting_retry           conflict
    UnsupportedIsolation   job.unsupported_isolation  conflict
    Refused                request.refused            refused
    UnknownTask            task.unknown               refused
    TaskDisabled           task.disabled              refused
    TaskNotSaved           task.not_saved             refused
    GateRefused            workflow.gate_not_open     refused
    AppendRefused          workflow.append_window_not_open             refused
    LeaseLost              job.lease_lost             refused
    WorkerRetired          worker.retired             refused
    NotFound               request.not_found          not_found
    JobNotFound            job.not_found              not_found
    WorkflowNotFound       workflow.not_found         not_found
    ResultMissing          workflow.result_missing    not_found
    JobEnded               job.ended                  ended
    JobFailed              job.failed                 ended
    JobCanceled            job.canceled               ended
    JobGone                job.gone                   ended
    WorkflowEnded          workflow.ended             ended
    WorkflowFailed         workflow.failed            ended
    WorkflowCanceled       workflow.canceled          ended
    WaitTimeout            job.wait_timeout           timeout
    Unavailable            store.unavailable          unavailable
    StoreAway              store.away                 unavailable
    StoreBusy              store.busy                 unavailable
    RowsLocked             store.rows_locked          unavailable
    StoreReadOnly          store.read_only            unavailable
    StoreFull              store.full                 unavailable
    StoreClosed            store.closed               unavailable
    SchemaError            schema.unfit               schema
    SchemaMissing          schema.missing             schema
    SchemaOutdated         schema.outdated            schema
    SchemaNewer            schema.newer               schema
    SchemaChanged          schema.changed             schema
    SchemaDirty            schema.dirty               schema
    SchemaForeign          schema.foreign             schema
    UnsupportedDatabase    store.unsupported          unsupported
    WorkerDied             worker.died                internal
    InternalError          perdure.internal           internal
"""

FINER_CODES = """
    AppendRefused          workflow.append_terminal_workflow
    AppendRefused          workflow.append_window_missing
    AppendRefused          workflow.append_window_not_gate
    Conflict               move.differs
    GateConflict           workflow.gate_conflicting_output_retry
    GateRefused            workflow.gate_not_found
    GateRefused            workflow.gate_not_gate
    IdempotencyConflict    workflow.idempotency_conflict
    InternalError          job.bad_snapshot
    InternalError          job.damaged
    InternalError          job.key_unstable
    InternalError          store.constraint
    InternalError          store.refused
    InternalError          store.too_large
    InternalError          store.undecodable
    InternalError          store.unprepared
    InternalError          task.damaged
    InternalError          workflow.bad_snapshot
    InternalError          workflow.key_unstable
    Invalid                schema.no_such_version
    Invalid                store.bad_value
    Invalid                store.limit
    InvalidOption          queue.declared_twice
    InvalidOption          workflow.append_mutation_key_blank
    InvalidOption          workflow.gate_invalid_terminal_status
    InvalidTask            task.duplicate
    NotFound               limit.unknown
    Refused                job.is_a_step
    Refused                job.nested_transaction
    Refused                job.not_succeeded
    Refused                job.unique_key_taken
    Refused                move.abandoned
    Refused                move.arrived
    Refused                move.incomplete
    Refused                move.misfit
    Refused                move.not_empty
    Refused                move.other
    Refused                move.same
    Refused                move.workers
    Refused                request.ambiguous_id
    Refused                store.moved
    Refused                store.self_locked
    Refused                testing.limit
    Refused                testing.nested
    Refused                testing.over
    Refused                testing.stuck
    SchemaDirty            schema.gap
    StoreAway              store.left_behind
    StoreBusy              store.contended
    StoreReadOnly          store.forbidden
    UnsupportedConnection  conn.aborted
    UnsupportedConnection  conn.autocommit
    UnsupportedConnection  conn.busy
    UnsupportedConnection  conn.closed
    UnsupportedConnection  conn.encoding
    UnsupportedConnection  conn.other_database
    UnsupportedConnection  conn.pipeline
    UnsupportedConnection  conn.wrong_mode
    UnsupportedConnection  testing.inline
"""
"""Codes given where an error is raised, because one class stands for several reasons."""

CLASSES = {
    name: value
    for name, value in vars(errors).items()
    if inspect.isclass(value) and issubclass(value, PerdureError)
}


def table(text: str) -> list[tuple[str, ...]]:
    return [tuple(line.split()) for line in text.strip().splitlines()]


def test_every_error_has_its_code_and_its_category() -> None:
    found = [(name, error.code, error.category) for name, error in CLASSES.items()]
    assert found == table(ERRORS)


def test_no_two_errors_share_a_code() -> None:
    codes = [row[1] for row in (*table(ERRORS), *{row[1]: row for row in table(FINER_CODES)}.values())]
    assert sorted(codes) == sorted(set(codes))


def test_every_code_given_where_an_error_is_raised_is_listed() -> None:
    assert sorted(set(codes_in_the_package())) == table(FINER_CODES)


def codes_in_the_package() -> Iterator[tuple[str, str]]:
    """Each error of the package that is given a ``code="…"``, by itself or by a constant of its module."""
    for path in Path(inspect.getfile(perdure)).parent.rglob("*.py"):
        tree = ast.parse(path.read_text())
        constants = dict(constants_in(tree))
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            names = [node.id for node in (call.func, *call.args) if isinstance(node, ast.Name)]
            codes = [word.value for word in call.keywords if word.arg == "code"]
            for error, code in product(names, codes):
                match code:
                    case ast.Constant(value=str(text)) if error in CLASSES:
                        yield error, text
                    case ast.Name(id=name) if error in CLASSES:
                        yield error, constants.get(name, "?")


def constants_in(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text))):
                yield name, text
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=str(text))):
                yield name, text


def test_the_tree_that_is_drawn_is_the_tree_that_is() -> None:
    grown = {
        name: error.__bases__[0].__name__ for name, error in CLASSES.items() if error is not PerdureError
    }
    assert dict(drawn(errors.__doc__ or "")) == grown


def drawn(text: str) -> Iterator[tuple[str, str]]:
    """Each class of the drawing with the one above it. A name may also stand behind its parent's."""
    path = ["PerdureError"]
    for line in re.findall(r"^    ([│ ]*)[├└]── (.+)$", text, re.MULTILINE):
        branch, words = line
        depth = 1 + len(branch) // 4
        names, _, remark = words.partition("  ")
        del path[depth:]
        for name in names.split(", "):
            yield name, path[-1]
        path.append(names)
        for name in re.findall(r"\w+", remark):
            if name in CLASSES:
                yield name, names


@pytest.mark.parametrize("error", CLASSES.values(), ids=CLASSES)
def test_an_error_says_by_itself_what_it_means(error: type[PerdureError]) -> None:
    said = (error.__doc__ or "").strip()
    assert re.fullmatch(r"\w.*\.", said), "one sentence"
    if error in (BadArguments, IdempotencyConflict):
        return  # Their messages name the argument or the field.
    assert str(error()) == said
    assert str(error("In other words.")) == "In other words."


def test_a_conflict_names_the_field() -> None:
    conflict = IdempotencyConflict("arguments.to")
    assert conflict.field == "arguments.to"
    assert str(conflict) == "The idempotency key was used for a different request: arguments.to differs."


def test_bad_arguments_name_their_place() -> None:
    assert (BadArguments("$.to: is missing", path="$.to").path, BadArguments("…").path) == ("$.to", "$")


def test_a_finer_code_belongs_to_one_error_and_leaves_its_class_alone() -> None:
    finer = errors.InvalidTask("There is one already.", code="task.duplicate")
    assert (finer.code, finer.category, errors.InvalidTask.code) == (
        "task.duplicate",
        "invalid",
        "task.invalid",
    )


def test_whoever_waits_may_catch_the_timeout_of_the_standard_library() -> None:
    assert issubclass(errors.WaitTimeout, TimeoutError)
