"""Operations on the database, each written once, for both kinds of database and for sync and async callers."""
