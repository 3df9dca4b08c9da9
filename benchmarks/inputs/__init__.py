"""What sequences, products, position and late labels are worth, on logs whose truth is known."""
