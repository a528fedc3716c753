"""`manage.py additions_only`: which migrations the workers of the old release survive."""

import pytest
from django.db import connection, migrations, models
from django.db.migrations.state import ModelState, ProjectState

from redelivery.management.commands.additions_only import reason

NOT_NULL = models.IntegerField(default=1)
HARMLESS = {
    "a new table": migrations.CreateModel("Other", [("id", models.AutoField(primary_key=True))]),
    "a column that may be NULL": migrations.AddField("row", "new", models.IntegerField(null=True)),
    "a column with a default of the database": migrations.AddField(
        "row", "new", models.IntegerField(db_default=1)
    ),
    "a link table": migrations.AddField("row", "new", models.ManyToManyField("shop.row")),
    "an index": migrations.AddIndex("row", models.Index(fields=["name"], name="by_name")),
    "what only Python sees": migrations.AlterField(
        "row", "name", models.CharField(max_length=9, help_text="A name.")
    ),
    "only a state": migrations.SeparateDatabaseAndState(
        state_operations=[migrations.RemoveField("row", "name")]
    ),
}
TAKES = {
    "a column less": (migrations.RemoveField("row", "name"), "takes away"),
    "a column renamed": (migrations.RenameField("row", "name", "title"), "takes away"),
    "a table less": (migrations.DeleteModel("row"), "takes away"),
    "a table renamed": (migrations.RenameModel("row", "Line"), "takes away"),
    "a column that old inserts leave out": (
        migrations.AddField("row", "new", NOT_NULL),
        "inserts leave it out",
    ),
    "a shorter column": (migrations.AlterField("row", "name", models.CharField(max_length=5)), "changes"),
    "SQL": (migrations.RunSQL("SELECT 1"), "cannot be judged"),
    "Python": (migrations.RunPython(migrations.RunPython.noop), "cannot be judged"),
    "hidden in a state": (
        migrations.SeparateDatabaseAndState(database_operations=[migrations.RemoveField("row", "name")]),
        "takes away",
    ),
}


def judge(operation) -> str:
    """What is said of one operation on a table `row` with a column `name`."""
    fields = [("id", models.AutoField(primary_key=True)), ("name", models.CharField(max_length=9))]
    before = ProjectState()
    before.add_model(ModelState("shop", "Row", fields))
    after = before.clone()
    operation.state_forwards("shop", after)
    return reason(operation, migrations.Migration("0002_change", "shop"), before, after, connection)


@pytest.mark.django_db(transaction=True)  # what SQLite needs to alter tables
@pytest.mark.parametrize("operation", HARMLESS.values(), ids=HARMLESS)
def test_an_addition_passes(operation):
    assert judge(operation) == ""


@pytest.mark.django_db(transaction=True)  # what SQLite needs to alter tables
@pytest.mark.parametrize(("operation", "why"), TAKES.values(), ids=TAKES)
def test_anything_else_is_named(operation, why):
    assert why in judge(operation)
