"""Labels, made of columns or expressions, and on which rows they exist."""
