-- What a vacuum leaves behind.

-- In a large table it leaves the indexes as they are while fewer than a fiftieth of the pages have anything dead in them.
-- Each claim that looks everywhere then walks past all that was claimed since: among eleven million jobs 27 pages for each
-- job that it takes, and 14 where every vacuum tidies the indexes, too. That reads the primary key once in a while.
ALTER TABLE perdure.job SET (vacuum_index_cleanup = on);
