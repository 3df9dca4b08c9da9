"""Generated broken inputs: each must end in a clear error or in the right answer."""
