"""What `make check` asks of names and sentences."""
