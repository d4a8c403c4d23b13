"""The price of a model's tokens. Pure."""

from pydantic import BaseModel, ConfigDict, Field

MILLION = 1_000_000


class TokenPrice(BaseModel):
    """Price of a model's tokens, in the currency of `budget`."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    input: float = Field(ge=0, description="price of a million tokens of prompts")
    output: float = Field(ge=0, description="price of a million tokens of answers")

    @property
    def is_free(self) -> bool:
        """Whether no token costs anything."""
        return not self.input and not self.output

    def compute_cost(self, prompt_tokens: int, response_tokens: int) -> float:
        """Compute the cost of so many tokens."""
        return (prompt_tokens * self.input + response_tokens * self.output) / MILLION
