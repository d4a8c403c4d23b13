"""The processes an agent runs in: started, limited, sandboxed, ended."""
