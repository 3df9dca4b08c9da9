"""What races have in common: paired times, results beside targets, product rates, the last line."""
