"""An MCP server over standard input and output, with fourteen tools and nested schemas; ``order_part`` fails."""

from enum import StrEnum

from mcp.server import MCPServer
from pydantic import BaseModel, Field

server = MCPServer("desk")


class Unit(StrEnum):
    """A unit of length."""

    MILLIMETRE = "mm"
    INCH = "in"


class Length(BaseModel):
    """A length with its unit."""

    value: float
    unit: Unit = Unit.MILLIMETRE


class Filter(BaseModel):
    """A condition on parts; conditions nest."""

    field: str = Field(description="name of a field, such as material")
    equals: str | int | None = None
    any_of: list["Filter"] = Field(default_factory=list, description="conditions of which one holds")


class Part(BaseModel):
    """A part of a machine."""

    number: str
    size: dict[str, Length] = Field(default_factory=dict, description="lengths by name")
    tags: list[str] = Field(default_factory=list)


@server.tool()
def find_part(where: Filter, limit: int = 5) -> str:
    """Find parts that a condition selects. Answers with their numbers."""
    return f"parts with {where.field} {where.equals}: " + ", ".join(f"P-{number}" for number in range(limit))


@server.tool()
def reserve_part(part: Part, due: str | None = None) -> str:
    """Reserve a part until a day."""
    return f"reserved {part.number} until {due or 'further notice'}"


@server.tool()
def order_part(number: str) -> str:
    """Order a part from its maker."""
    raise ValueError(f"the maker of {number} does not answer")


@server.tool()
def list_makers(country: str = "") -> str:
    """List the makers of parts."""
    return "Ann's Works, Bob & Sons"


@server.tool()
def read_drawing(number: str, page: int = 1) -> str:
    """Read a page of a part's drawing."""
    return f"drawing of {number}, page {page}: a circle, \u00d8 12 mm"


@server.tool()
def convert_length(length: Length, unit: Unit) -> str:
    """Convert a length to another unit."""
    return f"{length.value} {length.unit} in {unit}"


@server.tool()
def compare_parts(first: Part, second: Part) -> str:
    """Compare two parts."""
    return f"{first.number} and {second.number} differ"


@server.tool()
def add_note(number: str, text: str) -> str:
    """Add a note to a part."""
    return f"noted on {number}"


@server.tool()
def list_notes(number: str) -> str:
    """List the notes of a part."""
    return f"no notes on {number}"


@server.tool()
def count_stock(numbers: list[str]) -> str:
    """Count the stock of several parts."""
    return ", ".join(f"{number}: 4" for number in numbers)


@server.tool()
def move_stock(number: str, shelf: str, count: int = Field(ge=1, default=1)) -> str:
    """Move parts to another shelf."""
    return f"moved {count} of {number} to {shelf}"


@server.tool()
def cancel_order(order_id: str) -> str:
    """Cancel an order."""
    return f"cancelled {order_id}"


@server.tool()
def track_order(order_id: str) -> str:
    """Track an order."""
    return f"{order_id} is on its way"


@server.tool()
def estimate_cost(parts: list[Part], discount: float | None = None) -> str:
    """Estimate the cost of parts."""
    return f"{len(parts)} parts cost {12 * len(parts)}"


if __name__ == "__main__":
    server.run("stdio")
