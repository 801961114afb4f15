"""Everything a user can pass, and what others may have written: accepted and kept, or refused by an error of ours."""
