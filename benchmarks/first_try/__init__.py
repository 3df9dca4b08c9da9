"""An untouched config against models that take a minute to write, on logs nobody has seen."""
