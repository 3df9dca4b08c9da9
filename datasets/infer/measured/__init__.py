"""What the rows say of a column: how well it foretells a label, and what its values look like."""
