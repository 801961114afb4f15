"""Callers' connections, passed as ``conn=``: one module for each driver."""
