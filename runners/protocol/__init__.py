"""A model call as data: requests, streamed answers, and the rest of one that broke off. Pure."""
