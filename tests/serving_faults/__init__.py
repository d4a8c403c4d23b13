"""Faults in the serving path, each one that was met elsewhere, for the auditor to find.

They are switched by a file: it holds the name of the fault that acts now, and both the node and its vLLM read it.
"""
