"""Shared helpers that belong to no single role: asyncio tasks, processes, HTTP servers, files and observability."""
