"""ClickHouse as a client sees it: connections, limits, users, migrations."""
