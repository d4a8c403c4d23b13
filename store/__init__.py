"""The store: every span into ClickHouse once, and SQL over it."""
