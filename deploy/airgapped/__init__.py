"""Parts for a GPU machine that reaches no package index, and the calls that measure there."""
