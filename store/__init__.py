"""The store: every span into ClickHouse once, and SQL about them, embedded or on a server."""
