"""What many ranks cost: bytes sent, gates that share a message, rows per second, growth."""
