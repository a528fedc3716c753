"""``manage.py additions_only``: may the migrations that are not applied yet run under the old release's workers?

While a release is exchanged, workers of the old one still use the tables. So a deploy may only add. What takes away
goes into the deploy after the one whose code no longer needs it.
"""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import DEFAULT_DB_ALIAS, connections, models
from django.db.migrations import Migration, operations
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.operations.base import Operation
from django.db.models import NOT_PROVIDED

#: Old code neither sees these nor is stopped by them.
ADDITIONS = (
    operations.CreateModel,
    operations.AddIndex,
    operations.RemoveIndex,
    operations.AlterModelOptions,
    operations.AlterModelManagers,
)
TAKES_AWAY = (operations.RemoveField, operations.DeleteModel, operations.RenameField, operations.RenameModel)


class Command(BaseCommand):
    help = (
        "Exit with status 1 when a migration that is not applied yet does more than add, so that workers of the "
        "release that is still running would fail."
    )
    requires_system_checks = ()

    def handle(self, *args: Any, **options: Any) -> None:
        """Print each operation that does more than add, and fail if there is one."""
        found = destructive(DEFAULT_DB_ALIAS)
        for line in found:
            self.stderr.write(line)
        if found:
            raise CommandError(
                "the migrations above do more than add: first deploy code that needs neither the old nor the new "
                "form, then these."
            )


def destructive(database: str) -> list[str]:
    """What unapplied migrations do beyond adding, one line each. An app with no applied migration has no old code."""
    connection = connections[database]
    executor = MigrationExecutor(connection)
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    used = {app for app, _ in executor.loader.applied_migrations}
    state = executor._create_project_state(with_applied_migrations=True)
    found = []
    for migration, _ in plan:
        for operation in migration.operations:
            before = state.clone()
            operation.state_forwards(migration.app_label, state)
            if migration.app_label in used and (
                why := reason(operation, migration, before, state, connection)
            ):
                name = f"{migration.app_label}.{migration.name}"
                found.append(f"{name}: {operation.describe()}: {why}")
    return found


def reason(operation: Operation, migration: Migration, before: Any, after: Any, connection: Any) -> str:
    """Why ``operation`` is more than an addition; empty when it is one."""
    if isinstance(operation, operations.SeparateDatabaseAndState):
        inner = (reason(one, migration, before, after, connection) for one in operation.database_operations)
        return next(filter(None, inner), "")
    if isinstance(operation, operations.AddField):
        return _of_new_field(operation.field)
    if isinstance(operation, ADDITIONS):
        return ""
    if isinstance(operation, (operations.RunSQL, operations.RunPython)):
        return "cannot be judged"
    with connection.schema_editor(collect_sql=True, atomic=False) as editor:
        operation.database_forwards(migration.app_label, editor, before, after)
    statements = [line for line in editor.collected_sql if not line.startswith("--")]
    if not statements:  # only Python sees the change: choices, a help text
        return ""
    takes = isinstance(operation, TAKES_AWAY)
    return "takes away what the old release uses" if takes else "changes what the old release uses"


def _of_new_field(field: models.Field) -> str:
    """Old code inserts rows without the new column: that works when it may be NULL or the database has a default."""
    if field.many_to_many or field.null or field.db_default is not NOT_PROVIDED:
        return ""
    return "the old release's inserts leave it out: give it null=True or a db_default"
