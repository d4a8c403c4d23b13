"""Runners: lease a task, run the agent, record every model call, publish the spans. CPU only, no heavy packages."""
