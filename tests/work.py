"""What a call costs: its factorizations, solves, multiplications and largest allocation, counted below autograd."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten


class Work(TorchDispatchMode):
    """Counts while it is entered.

    Attributes:
        factored: The orders of the matrices that were factorised or inverted, one for each.
        columns: The number of columns that were solved for.
        multiplications: The multiplications of products, solves and factorizations, about.
        largest: The numbers in the largest tensor that was allocated.
    """

    def __init__(self):
        super().__init__()
        self.factored, self.columns, self.multiplications, self.largest = [], 0, 0, 0
        self._kept = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        made = [leaf for leaf in tree_leaves(found) if isinstance(leaf, torch.Tensor)]
        old = {leaf.untyped_storage().data_ptr() for leaf in given}
        for leaf in made:
            if leaf.untyped_storage().data_ptr() not in old:
                self.largest = max(self.largest, leaf.untyped_storage().nbytes() // leaf.element_size())
        self._count(function.overloadpacket, given, made)
        return found

    def _count(self, function, given, made):
        if function in (aten.mm, aten.bmm, aten.mv, aten.dot, aten.addmm, aten.baddbmm, aten.addmv):
            a, b = given[-2:]
            self.multiplications += a.numel() * (b.shape[-1] if b.dim() > 1 else 1)
        elif function in (aten.linalg_solve_triangular, aten._cholesky_solve_helper, aten.cholesky_solve):
            A = given[0 if function is aten.linalg_solve_triangular else 1]
            self.columns += made[0].numel() // A.shape[-1]
            self.multiplications += made[0].numel() * A.shape[-1]
        elif function in (aten.linalg_cholesky_ex, aten.cholesky_inverse, aten.linalg_lu_factor_ex, aten._linalg_eigh):
            n = given[0].shape[-1]
            self.factored += [n] * given[0].shape[:-2].numel()
            self.multiplications += given[0].numel() * n


def work_of(call):
    """The work of one call."""
    with Work() as work:
        call()
    return work
