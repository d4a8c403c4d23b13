"""What the three roles are asked: in a file of its own, so that it can be read without the framework."""

WRITER = """\
Write a SQLite query.
{schema}
Question: {question}"""

CHECKER = """\
Question: {question}
Query: {query}
{outcome}
Is the query right? yes or no"""

REWRITER = """\
Write a better SQLite query.
{schema}
Question: {question}
Query: {query}
{outcome}
Check: {verdict}"""
