"""What belongs to no room: tasks of asyncio, processes, HTTP servers, files, and what is observed of them."""
