"""Where operations meet a database: the only place that opens connections, waits, or imports a driver."""
