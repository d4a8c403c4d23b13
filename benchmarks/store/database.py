"""A database for benchmarks of the store."""

from clickhouse_connect.driver.client import Client

from lightningbus.store.clickhouse import migrations
from lightningbus.store.clickhouse.client import connect


def create_database(url: str) -> Client:
    """Create the database ``lightningbus`` with its tables and views; return a client."""
    migrations.migrate(connect(url, None), "lightningbus")
    client = connect(url)
    migrations.create_views(client, "lightningbus")
    return client
