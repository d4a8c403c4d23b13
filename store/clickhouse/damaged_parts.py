"""Parts of tables that ClickHouse has set aside as it opened them: their rows are missing from each result."""

from typing import Any

from clickhouse_connect.driver.exceptions import ClickHouseError

QUERY = """
SELECT table, count() FROM system.detached_parts
WHERE database = {database:String} AND startsWith(reason, 'broken')
GROUP BY table ORDER BY table
"""


def describe_damage(client: Any, database: str) -> str:
    """Describe in a sentence which tables lack rows; empty: none, or this user may not see it."""
    try:
        rows = client.query(QUERY, parameters={"database": database}).result_rows
    except ClickHouseError:
        return ""
    if not rows:
        return ""
    tables = ", ".join(f"{table} ({count} of its parts)" for table, count in rows)
    return f"results lack rows: files of the store are missing or damaged, of {tables}; restore a copy of its directory"
