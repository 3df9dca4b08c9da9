"""What races have in common: times in turn, targets, the last line; layers, ranks and hosts."""
