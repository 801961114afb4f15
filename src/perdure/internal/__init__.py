"""What every layer may use and nobody outside sees: journal, failpoints, lazy attributes, threads."""
