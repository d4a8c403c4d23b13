"""ClickHouse in this process, behind its HTTP interface."""
