"""Expert pools: any modules as experts, or MLPs computed together as grouped products."""
