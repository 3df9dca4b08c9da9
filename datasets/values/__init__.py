"""Values of columns: ids, text, numbers and datetimes in one form, whatever type a file stored."""
