"""What each virtual environment is made of: the versions that were looked at when the settings were chosen."""

from __future__ import annotations

PSYCOPG = "psycopg[binary,pool]==3.3.8"
REDIS = "redis==8.1.0"

REQUIREMENTS: dict[str, tuple[str, ...]] = {
    "pgqueuer": ("pgqueuer==1.6.0", "asyncpg==0.32.0", "uvloop==0.23.0"),
    "procrastinate": ("procrastinate==3.10.0", PSYCOPG),
    "chancy": ("chancy==0.26.0", PSYCOPG),
    "dbos": ("dbos==3.3.0", "sqlalchemy==2.1.8", PSYCOPG),
    "celery": ("celery[redis]==5.7.0", REDIS),
    "dramatiq": ("dramatiq==2.2.1", REDIS),
    "rq": ("rq==2.12.0", REDIS),
    "huey": ("huey==3.5.4",),
    # Not a peer: the bare limit by the other driver.
    "asyncpg": ("asyncpg==0.32.0", "msgspec>=0.20"),
}
