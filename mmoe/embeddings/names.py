"""Names of tables, in modules and in tensors of the optimizer's state."""

_PREFIX = "table_"


def module_name(table: str) -> str:
    """Names a table inside `nn.ModuleDict` and `nn.ParameterDict`.

    Their entries are attributes, so that a table called `items`, `keys` or `forward` would hide one
    of theirs; torch refuses it.

    Example:
        >>> module_name("items"), table_of_module(module_name("items"))
        ('table_items', 'items')
    """
    return f"{_PREFIX}{table}"


def table_of_module(name: str) -> str:
    """Returns the table that `module_name` named so."""
    return name.removeprefix(_PREFIX)


def table_of_state(name: str) -> str | None:
    """Returns the table of a tensor of `EmbeddingBackend.optimizer_state`; None: it is of all.

    Example:
        >>> table_of_state("item/exp_avg"), table_of_state("steps")
        ('item', None)
    """
    table, slash, _ = name.partition("/")
    return table if slash else None
