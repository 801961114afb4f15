"""Operations on the database, written once for both databases, and for sync and async code."""
