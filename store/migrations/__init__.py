"""ClickHouse tables, as numbered SQL files."""
