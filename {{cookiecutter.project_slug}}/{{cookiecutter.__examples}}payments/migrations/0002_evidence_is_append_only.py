"""The database itself refuses to change what was written down about a payment."""

from django.db import migrations

SQLITE = """
CREATE TRIGGER payments_evidence_append_only BEFORE UPDATE ON payments_evidence
BEGIN SELECT RAISE(ABORT, 'evidence is never changed'); END
"""
POSTGRESQL = """
CREATE FUNCTION payments_evidence_append_only() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'evidence is never changed'; END $$;
CREATE TRIGGER payments_evidence_append_only BEFORE UPDATE ON payments_evidence
FOR EACH ROW EXECUTE FUNCTION payments_evidence_append_only();
"""
DROP_SQLITE = "DROP TRIGGER payments_evidence_append_only"
DROP_POSTGRESQL = "DROP FUNCTION payments_evidence_append_only() CASCADE"


def run(sqlite: str, postgresql: str):
    """Return an operation that executes what the database at hand understands."""

    def execute(apps, schema_editor) -> None:
        statements = {"sqlite": sqlite, "postgresql": postgresql}
        if statement := statements.get(schema_editor.connection.vendor):
            schema_editor.execute(statement)

    return execute


class Migration(migrations.Migration):
    """Add the trigger."""

    dependencies = [("payments", "0001_initial")]
    operations = [
        migrations.RunPython(run(SQLITE, POSTGRESQL), run(DROP_SQLITE, DROP_POSTGRESQL)),
    ]
