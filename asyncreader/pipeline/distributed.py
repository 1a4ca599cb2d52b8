"""The values of "auto": rank, world size and workers, from the launcher of this process."""

from __future__ import annotations

import os
import re
import sys
import warnings
from typing import Any, Final

from ..errors import ParamsError
from ..params.reader import Order, Run
from ..system.limits import usable_cores

#: The variables of torchrun, Open MPI and SLURM, in the order in which they are looked up.
_RANK_VARIABLES: Final = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)


def _ray_context() -> Any:
    """Ray Train's context if this is one of its workers, else None."""
    train = sys.modules.get("ray.train")
    if train is None:
        return None
    try:
        context = train.get_context()
        return None if context.get_world_size() is None else context
    except Exception:  # of several types: this is the driver, or no worker of Train
        return None


def rank_and_world(p: Order) -> tuple[int, int]:
    """(rank, world_size). "auto" takes them from Ray Train's context or from the launcher's
    environment variables; without either it means (0, 1)."""
    if p.rank != "auto" and p.world_size != "auto":
        return int(p.rank), int(p.world_size)
    context = _ray_context()
    if context is not None:
        rank, world = int(context.get_world_rank()), int(context.get_world_size())
        _check_given(p, rank, world, f"Ray Train: rank {rank}, world size {world}")
        return rank, world
    for rank_name, size_name in _RANK_VARIABLES:
        if rank_name in os.environ and size_name in os.environ:
            try:
                rank, world = int(os.environ[rank_name]), int(os.environ[size_name])
            except ValueError:
                rank, world = -1, 0
            found = f"{rank_name}={os.environ[rank_name]}, {size_name}={os.environ[size_name]}"
            if not 0 <= rank < world:
                raise ParamsError(
                    'rank="auto": the launcher\'s variables make no sense', found=found
                )
            _check_given(p, rank, world, found)
            return rank, world
    _refuse_half_a_launcher()
    rank, world = (0 if p.rank == "auto" else int(p.rank)), 1
    if p.world_size != "auto":
        world = int(p.world_size)
    if rank >= world or (world > 1 and p.rank == "auto"):
        raise ParamsError(
            '"auto" found no launcher\'s variables',
            found=f"rank {p.rank}, world_size {p.world_size}",
            expected=", ".join(" and ".join(pair) for pair in _RANK_VARIABLES),
        )
    return rank, world


#: Whether this process was told that it left ``world_size`` out.
_warned = False


def warn_of_ranks_left_out() -> None:
    """Warn, once in this process, if a launcher started several: without ``world_size`` each
    serves every batch. For the reader's constructor."""
    global _warned
    found = None if _warned else _several_ranks()
    if found is not None:
        warnings.warn(
            f"{found}, but world_size is left out: each rank serves all batches. Write "
            'rank="auto", world_size="auto" for its share, or world_size=1 if all are meant',
            stacklevel=3,
        )
        _warned = True


def _several_ranks() -> str | None:
    """What says that there are several ranks, where "auto" would look; None for one process."""
    context = _ray_context()
    if context is not None:
        world = int(context.get_world_size())
        return f"Ray Train's world size is {world}" if world > 1 else None
    for rank_name, size_name in _RANK_VARIABLES:
        size, ranked = os.environ.get(size_name), rank_name in os.environ
        # SLURM's number of tasks alone is that of a shell of salloc
        if size is not None and (ranked or not rank_name.startswith("SLURM")):
            several = size.isdecimal() and int(size) > 1
            if several or ranked:
                return f"{size_name}={size}" if several else None
    return None


def _refuse_half_a_launcher() -> None:
    """ParamsError where a launcher's rank is there without its number of ranks, or the reverse:
    each rank would take itself for the only one, and read everything.

    SLURM says 0 of no number in a batch script, and how many of no rank in a shell of ``salloc``:
    both are single processes.
    """
    for rank_name, size_name in _RANK_VARIABLES:
        rank, world = os.environ.get(rank_name), os.environ.get(size_name)
        alone = rank_name.startswith("SLURM") or world in (None, "1")
        if (world is None and rank not in (None, "0")) or (rank is None and not alone):
            raise ParamsError(
                f'rank="auto": {rank_name} and {size_name} go together',
                found=f"{rank_name}={rank}" if world is None else f"{size_name}={world}",
                hint="set both, or pass rank and world_size as numbers",
            )


def _check_given(p: Order, rank: int, world: int, found: str) -> None:
    """ParamsError if rank or world_size was given and contradicts the launcher."""
    for name, given, unset, auto in (
        ("rank", p.rank, 0, rank),
        ("world_size", p.world_size, 1, world),
    ):
        if given not in ("auto", unset, auto):
            raise ParamsError(f"{name} is not what the launcher says", found=f"{given}, {found}")


def worker_count(p: Run) -> int:
    """Workers to start: ``nthread``, or the usable cores shared among this machine's ranks."""
    if p.nthread != "auto":
        return int(p.nthread)
    context = _ray_context()
    if context is not None:
        return max(1, usable_cores() // int(context.get_local_world_size()))
    for name in ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE"):
        local = os.environ.get(name, "")
        if local.isdigit() and int(local) > 0:
            return max(1, usable_cores() // int(local))
    return max(1, usable_cores() // _slurm_tasks_here())


def _slurm_tasks_here() -> int:
    """Tasks of this SLURM step on this machine, else 1. SLURM lists them by node: ``2(x3),1``."""
    if "SLURM_PROCID" not in os.environ:
        return 1
    node = os.environ.get("SLURM_NODEID", "0")
    left = int(node) if node.isdigit() else 0
    listed = os.environ.get("SLURM_STEP_TASKS_PER_NODE", "")
    for tasks, times in re.findall(r"(\d+)(?:\(x(\d+)\))?(?:,|$)", listed):
        left -= int(times or 1)
        if left < 0:
            return max(1, int(tasks))
    return 1
