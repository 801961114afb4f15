"""Every kind of connection that ``conn=`` takes, opened as an application would, and what must hold for each."""
