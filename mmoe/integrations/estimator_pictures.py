"""`RunPicturesMixin`: what a fitted estimator draws of its run."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from sklearn.utils.validation import check_is_fitted

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class RunPicturesMixin:
    """Draws the run of a fitted estimator.

    Attributes:
        run_directory_: Its folder.
    """

    run_directory_: Path

    def plot_gates(self) -> "Axes":
        """Returns pyplot axes with how much of each expert each task's gate uses."""
        from mmoe.integrations.run_pictures import gate_axes

        check_is_fitted(self, "run_directory_")
        return gate_axes(self.run_directory_)

    def plot_learning_curves(self) -> np.ndarray:
        """Returns an array of pyplot axes: loss and validation metric of each task, by epoch."""
        from mmoe.integrations.run_pictures import learning_axes

        check_is_fitted(self, "run_directory_")
        return learning_axes(self.run_directory_)

    def plot_roc(self) -> np.ndarray:
        """Returns an array of pyplot axes: each binary task's ROC on the held-out rows."""
        from mmoe.integrations.run_pictures import roc_axes

        check_is_fitted(self, "run_directory_")
        return roc_axes(self.run_directory_)
