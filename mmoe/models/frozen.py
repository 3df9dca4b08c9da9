"""`FrozenExpert`: a trained module of somebody's in a pool, which is not trained further."""

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from mmoe.plugins import import_for_run
from mmoe.process_settings import borrowed_generators


class FrozenExpert(nn.Module):
    """Holds a module whose parameters no optimizer moves, and which never leaves evaluation mode.

    Gradients pass through it to what it reads, so embeddings still learn. Its tensors are stored
    with the network's, in fp32; what was stored scores, whatever the file of weights then holds.

    The module is imported only where the config that names it may import it (`mmoe.plugins`): of a
    run's folder what `--import` or an installed package allows.

    Args:
        input_dim: Width D of a row, with which the module is made.
        module: `my_package.file:make_expert`: a function defined there, which is called with D and
            returns an `nn.Module`, rows to rows; or a class of such modules.
        output: Width of what it returns.
        weights: A safetensors file with all its tensors; None: it comes as trained.

    Raises:
        ValueError: It cannot be imported or made, does not map rows of width D to rows of width
            `output`, or the weights do not fit.
        NotImported: Its module may not be imported, or cannot be.

    Example:
        >>> FrozenExpert(8, module="mmoe.no_such_file:make", output=4)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        mmoe.errors.NotImported: expert kind frozen: needs the module mmoe.no_such_file, which a ...
    """

    def __init__(
        self, input_dim: int, *, module: str, output: int, weights: str | None = None
    ) -> None:
        super().__init__()
        self.origin, self.input_dim, self.output_dim = module, input_dim, output
        with borrowed_generators():  # what it draws is nobody else's business
            self.module = _made(_factory(module), input_dim, module)
        # No counts or positions: those keep their type
        self.module.float()
        if weights is not None:
            _load(self.module, Path(weights), module)
        self.requires_grad_(False)
        self.train(False)
        self._check_rows()

    def train(self, mode: bool = True) -> "FrozenExpert":
        """Keeps it in evaluation mode, whatever the network around it is put into."""
        return super().train(False)

    def forward(self, x: Tensor) -> Tensor:
        """Maps `[R, input_dim]` to `[R, output_dim]`."""
        # Other experts read the same rows
        return self.module(x.clone() if self.changes_rows else x)

    @torch.no_grad()
    def _check_rows(self) -> None:
        what = f"expert kind frozen: {self.origin}: rows of width {self.input_dim}, which experts"
        given = torch.full((2, self.input_dim), -1.0)
        try:
            found = self.module(given)
        except Exception as error:
            raise ValueError(
                f"{what} read here, are not what it takes ({_one_line(error)}); it was trained on "
                "other inputs"
            ) from error
        shape = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
        if shape != [2, self.output_dim]:
            raise ValueError(
                f"{what} read here, should give rows of width {self.output_dim} (`output`), but 2 "
                f"of them gave {shape}; set output to what it returns"
            )
        if found.dtype != torch.float32:
            raise ValueError(
                f"{what} read here, are float32, but 2 of them gave {found.dtype}; let it return "
                "float32"
            )
        self.changes_rows = bool((given != -1).any())  # an activation in place


def _factory(path: str) -> Callable[[int], Any]:
    """Imports the function that makes it, out of a module that may be imported."""
    name, _, attribute = path.partition(":")
    # What a run's folder names is called here, so it must not be just anything that there is
    if name.partition(".")[0] in sys.stdlib_module_names:
        raise ValueError(
            f"expert kind frozen: {path}: is of Python's standard library; name what makes a "
            "trained module, such as my_package.file:make_expert"
        )
    import_for_run([name], "expert kind frozen")
    module = sys.modules[name]
    found = getattr(module, attribute, None)
    # As it was defined: a decorator such as torch.no_grad() is of another module
    bare = inspect.unwrap(found) if callable(found) else found
    own = isinstance(bare, FunctionType) and bare.__globals__ is vars(module)
    if isinstance(found, type):
        own = issubclass(found, nn.Module) and found.__module__ == name
    if found is None or not own:
        what = "has no" if found is None else "defines no function, nor torch.nn.Module,"
        raise ValueError(
            f"expert kind frozen: {name} {what} {attribute}; name a function or a class of that "
            "module, which is called with the width of a row"
        )
    return found


def _made(make: Callable[[int], Any], input_dim: int, path: str) -> nn.Module:
    try:
        module = make(input_dim)
    except Exception as error:
        raise ValueError(
            f"expert kind frozen: {path}({input_dim}) failed ({_one_line(error)}); it is called "
            "with the width of the rows that experts read here"
        ) from error
    if not isinstance(module, nn.Module):
        raise ValueError(
            f"expert kind frozen: {path}({input_dim}) returned a {type(module).__name__}, expected "
            "a torch.nn.Module"
        )
    return module


def _load(module: nn.Module, file: Path, path: str) -> None:
    what = f"expert kind frozen: weights {file}"
    try:
        stored = load_file(file)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{what}: cannot be read ({_one_line(error)})") from None
    own = module.state_dict()
    for name in sorted(own.keys() ^ stored.keys()):
        which = "has no tensor" if name in own else "has a tensor that the module has not,"
        raise ValueError(f"{what}: {which} {name!r}; expected all tensors of {path}, and no others")
    for name, tensor in own.items():
        if tensor.shape != stored[name].shape:
            raise ValueError(
                f"{what}: {name!r} has shape {list(stored[name].shape)}, but "
                f"{list(tensor.shape)} in {path}"
            )
    module.load_state_dict(stored)


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
