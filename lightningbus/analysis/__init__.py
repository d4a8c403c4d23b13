"""Runs read back from ClickHouse and the bus."""
