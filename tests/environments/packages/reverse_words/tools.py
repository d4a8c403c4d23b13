"""The tool server of the taskset."""

import verifiers.v1 as vf


class ReverseToolset(vf.Toolset[vf.ToolsetConfig]):
    """One tool."""

    TOOL_PREFIX = "words"

    @vf.tool
    def reverse(self, word: str) -> str:
        """Return the word reversed."""
        return word[::-1]


if __name__ == "__main__":
    ReverseToolset.run()
