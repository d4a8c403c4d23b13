"""The APIs an agent may speak: a request of each becomes a chat, and the chat's answer what the agent expects."""
