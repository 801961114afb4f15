"""Django's own migrations make our tables."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from perdure import App
from perdure.store.postgres.url import parse_url
from tests.migrations.database import Database

PROGRAM = """
import django
from django.conf import settings
from django.core.management import call_command

settings.configure(
    DATABASES={{"default": {database!r}}}, INSTALLED_APPS=["shop"], DEFAULT_AUTO_FIELD="django.db.models.AutoField"
)
django.setup()
call_command("migrate", verbosity=0)
call_command("migrate", verbosity=0)
call_command("makemigrations", check=True, dry_run=True, verbosity=0)
"""

MIGRATION = """
from django.db import migrations
from perdure.schema import install_sql

class Migration(migrations.Migration):
    operations = [migrations.RunSQL(install_sql("{dialect}", to=1), migrations.RunSQL.noop)]
"""


def test_a_migration_of_django_makes_our_tables(database: Database, tmp_path: Path) -> None:
    folder = tmp_path / "shop" / "migrations"
    folder.mkdir(parents=True)
    for package in (folder, folder.parent):
        (package / "__init__.py").touch()
    (folder / "0001_perdure.py").write_text(MIGRATION.format(dialect=database.dialect))
    (tmp_path / "manage.py").write_text(PROGRAM.format(database=settings(database)))
    ran = subprocess.run(
        [sys.executable, "manage.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    with App(database.url) as app:
        app.migrate()
        app.check_schema()
        assert app.task(name="x")(lambda: None).enqueue().state == "ready"


def settings(database: Database) -> dict[str, object]:
    if database.dialect == "sqlite":
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": database.url.removeprefix("sqlite:///")}
    asked = parse_url(database.url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": asked["dbname"],
        "USER": asked.get("user", ""),
        "PASSWORD": asked.get("password", ""),
        "HOST": asked.get("host", ""),
        "PORT": asked.get("port", ""),
    }
