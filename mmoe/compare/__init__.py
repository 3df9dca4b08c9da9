"""Several models, several seeds, simple models beside them: one table on the same test rows."""

from mmoe.compare.contestants import ComparisonSettings
from mmoe.compare.walk import compare_models

__all__ = ["ComparisonSettings", "compare_models"]
