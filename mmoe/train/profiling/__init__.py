"""`--profile`: where the time of a training step goes, by part and by operator."""
