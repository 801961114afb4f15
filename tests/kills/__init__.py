"""Real workers and a real producer, killed wherever they are; their diaries are held against the ledger."""
