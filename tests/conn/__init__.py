"""Tests of ``conn=``: every kind of connection, opened as an application would."""
