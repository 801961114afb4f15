"""Private tools that every layer may use: journal, failpoints, lazy attributes, threads."""
