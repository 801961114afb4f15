"""Real workers and a real producer, killed wherever they are; their journals are held against the ledger."""
