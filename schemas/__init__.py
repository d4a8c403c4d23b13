"""The wire: events, their codec, subjects and ids. It imports no other package of ours."""
