"""What converting a network into mixtures of experts costs and gains."""
