"""Connections that callers bring along as ``conn=``, one module for each driver."""
