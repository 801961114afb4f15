"""Real workers and a real producer are killed at any point; their journals are compared with the ledger."""
