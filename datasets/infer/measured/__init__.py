"""What the rows say of a column: how well it predicts a label, and what its values look like."""
