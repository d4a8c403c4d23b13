"""The APIs an agent may speak: each request becomes a chat, and the chat's answer takes the form of the API."""
