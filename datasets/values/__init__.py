"""Values of columns: ids, text, numbers and moments in one form, whatever type a file stored."""
