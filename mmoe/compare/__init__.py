"""Several models, several seeds, simple models beside them: one table on the same test rows."""

from mmoe.compare.walk import ComparisonSettings, compare_models

__all__ = ["ComparisonSettings", "compare_models"]
