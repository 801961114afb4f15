-- Moves of all rows to another database.

-- Where rows came from, and where they went. While a move is under way nobody but the mover writes to either side, and
-- afterwards nobody to the one that was left: triggers see to it, which the mover makes.
CREATE TABLE perdure.move (
    -- The same on both sides.
    id            text NOT NULL PRIMARY KEY,
    way           text NOT NULL CHECK (way IN ('in', 'out')),
    -- Of the other side.
    address       text NOT NULL,
    -- How far the copy has come, where rows come in.
    position      text,
    began_at      integer NOT NULL,
    ended_at      integer
) STRICT;
