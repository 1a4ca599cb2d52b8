"""Checks what a caller passed to a reader, once: names, values, and what they say together."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence

from ..errors import ParamsError
from ..sampling import draws, takes_classes, takes_weights
from ..system.checks import FLAG, written
from .declare import ANY
from .other_names import instead
from .reader import PARAMETERS, PATHS, READ_BY, Described, Given, ReaderParams, flattened


def snake_case(name: str) -> str:
    """The canonical spelling of a parameter: ``batchSize`` -> ``batch_size``."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", lambda m: "_" + m.group(1).lower(), name)


def parse_params(params: Given | None, overrides: Mapping[str, object]) -> ReaderParams:
    """Check everything that can be known without opening a file; ParamsError says what is wrong."""
    given = given_params(params, overrides)
    _check_source(given)
    checked = {name: _checked(name, value) for name, value in given.items()}
    result = ReaderParams.from_flat(checked)
    _check_together(result)
    return result


def _checked(name: str, value: object) -> object:
    """What is kept of a value; an error without advice names its place in the documentation."""
    try:
        return PARAMETERS[name].check(name, value)
    except ParamsError as exc:
        exc.hint = exc.hint or f"see docs/parameters.md#{name}"
        raise


def reading_params(
    path: str, given: Mapping[str, object], allowed: Sequence[str] = READ_BY
) -> ReaderParams:
    """``given`` checked, of which only those ``allowed`` say how the set at ``path`` is read."""
    read = parse_params({**given, "path": path}, {})
    unknown = sorted(name for name in given_params(given, {}) if name not in allowed)
    if unknown:
        raise ParamsError(
            "params say how a dataset is read",
            found=", ".join(unknown),
            expected=", ".join(allowed),
        )
    return read


def given_params(params: Given | None, overrides: Mapping[str, object]) -> dict[str, object]:
    """What the caller passed, by canonical name and unchecked; ``overrides`` win.

    ParamsError for names that no parameter has.
    """
    return {**_collect(params), **_collect(overrides)}


def apart_from(
    params: Given | None, overrides: Mapping[str, object], **flags: bool
) -> tuple[dict[str, object], dict[str, bool]]:
    """What the caller passed, as by :func:`given_params`, apart from ``flags``: keywords of the
    caller's own, which a dict may hold like any parameter. One that is True wins over the dict."""
    given = _collect(params, flags)
    for name in flags.keys() & given.keys():
        flags[name] |= FLAG(name, given.pop(name))
    return {**given, **_collect(overrides)}, flags


def _collect(params: Given | None, own: Collection[str] = ()) -> dict[str, object]:
    """What was passed, by flat names. ``own``: other names that the caller takes."""
    if params is None:
        return {}
    if isinstance(params, str | os.PathLike | list | tuple):
        return {"path": params}
    if isinstance(params, Described):
        return dict(params.given)
    if not isinstance(params, Mapping):
        raise ParamsError(
            "params must be a dict or a path",
            found=type(params).__name__,
            expected='{"path": ..., ...} or "train.h5"',
            hint="arrays go as data=" if hasattr(params, "shape") else None,
        )
    given: dict[str, object] = {}
    said: dict[str, str] = {}
    for raw, value in params.items():
        name = snake_case(raw) if isinstance(raw, str) else raw
        for flat, part in flattened(name, value).items():
            if flat not in PARAMETERS and flat not in own:
                hint = instead(str(name), value)
                raise ParamsError(f"unknown parameter {written(raw)}", hint=hint)
            if flat in given:
                also = said[flat] if raw == flat else raw
                raise ParamsError(f"{flat!r} is given twice, also as {also!r}")
            given[flat], said[flat] = part, raw
    return given


def _check_source(given: Mapping[str, object]) -> None:
    named = [n for n in (*PATHS, "mix", "data") if given.get(n) is not None]
    if len(named) != 1:
        raise ParamsError(
            "name one source of data",
            found=" and ".join(named) or "none",
            expected="one of path, hdf5_path, lmdb_path, mix or data",
        )
    if given.get("labels") is not None:
        if named == ["mix"]:
            raise ParamsError("labels= goes with data=, or with path= of one dataset", found="mix=")
        both = [one for one in ("labels_field", "labels_path") if given.get(one) is not None]
        if both and named != ["data"]:
            raise ParamsError(
                "labels= and labels of the file are both asked for", found=f"labels= and {both[0]}="
            )
    if given.get("labels_path") is not None and given.get("labels_field", "") is None:
        raise ParamsError("labels_path is given, but labels_field=None asks for no labels")


def _check_together(p: ReaderParams) -> None:
    dims = p.axes.dims
    if dims is not None and sorted(dims) != [1, 2, 3, 4]:
        raise ParamsError(
            "num_dim, h_dim, w_dim and cha_dim must be a permutation of 1, 2, 3, 4",
            found=f"({', '.join(map(str, dims))})",
        )
    along = p.sample_axis or 0
    if dims is not None and along and dims[0] != along + 1:
        raise ParamsError(
            "num_dim and sample_axis name different axes of the samples",
            found=f"num_dim={dims[0]}, counted from 1, and sample_axis={along}, counted from 0",
        )
    auto = {p.rank, p.world_size} & {"auto"}
    if not auto and not 0 <= int(p.rank) < int(p.world_size):
        raise ParamsError(
            "rank must be below world_size", found=f"rank {p.rank}, world_size {p.world_size}"
        )
    if p.last_batch == "short" and p.world_size not in (1, "auto"):
        raise ParamsError('last_batch="short" needs world_size 1: other ranks would wait forever')
    arrays = p.arrays
    for number, one in enumerate(arrays):
        try:
            _check_crop(one)
            _check_goes_with(one, (one,))
        except ParamsError as exc:
            exc.what = exc.what if p.views is None else f"views[{number}]: {exc.what}"
            raise
    _check_goes_with(p, arrays)
    _check_views(p)
    if p.weights is not None and not takes_weights(p.shuffle):
        raise ParamsError(
            "weights make independent draws, an order of their own",
            found=f"weights and shuffle={p.shuffle!r}",
            hint="leave one of them out",
        )
    some = p.weights is not None or p.mix.ratios is not None or draws(p.shuffle)
    some = some or (p.patch.shape is not None and p.patch.at == "random")
    if p.epoch_samples is not None and not some:
        raise ParamsError(
            'epoch_samples goes with weights, mix, shuffle="replacement" or random patches',
            found=f"shuffle={p.shuffle!r}",
            hint="other epochs serve each sample once; subset= serves fewer of them",
        )
    _check_mix(p)
    _check_fields(p)
    _check_windows(p)
    _check_lengths(p)
    _check_patches(p)


def _check_goes_with(p: ReaderParams, arrays: Sequence[ReaderParams]) -> None:
    """ParamsError where a parameter is given without what it goes with, in any of the ``arrays``
    that are made of a field: a part of a family without its head, say."""
    given, made = p.flat(), [one.flat() for one in arrays]
    for name, one in PARAMETERS.items():
        fits = not one.goes_with or any(
            flat[other] != PARAMETERS[other].default if value is ANY else flat[other] == value
            for flat in made
            for other, value in one.goes_with.items()
        )
        if not fits and given[name] != one.default:
            needed = (
                other if value is ANY else f'{other}="{value}"'
                for other, value in one.goes_with.items()
            )
            raise ParamsError(
                f"{name} goes with {' or '.join(needed)}",
                found=", ".join(f"{other}={given[other]!r}" for other in (name, *one.goes_with)),
            )


def _check_mix(p: ReaderParams) -> None:
    mixed = p.mix.ratios is not None
    several = isinstance(p.labels_field, tuple)
    if several and (mixed or p.data is not None or p.cuda):
        name = "mix" if mixed else "data" if p.data is not None else "cuda"
        raise ParamsError(
            f"several labels do not go with {name}=",
            found=f"labels_field={p.labels_field!r}",
            hint="name the others as fields: data_field=[...]",
        )
    if not mixed:
        return
    if p.weights is not None or takes_classes(p.shuffle):
        other = "weights" if p.weights is not None else f"shuffle={p.shuffle!r}"
        raise ParamsError(
            f"mix and {other} both say how often a sample comes",
            hint='leave one of them out; the datasets of a mix take shuffle=True, "block" or '
            '"replacement"',
        )
    if p.epoch_samples is not None and p.mix.until != "all":
        raise ParamsError(
            "epoch_samples and mix_until both say when an epoch of a mix ends",
            hint="leave one of them out",
        )


def _check_crop(p: ReaderParams) -> None:
    if p.size is None and (p.crop.ratio != 1.0 or p.crop.at_random):
        names = "crop_padding needs" if p.crop.padding else "crop and crop_ratio need"
        hint = "pass that of the stored images" if p.crop.padding else None
        raise ParamsError(f"{names} size=(H, W)", hint=hint)


def _check_views(p: ReaderParams) -> None:
    if p.views is None:
        return
    for name in ("mixup", "cutmix"):
        if getattr(p, name) is not None:
            raise ParamsError(
                f"{name} mixes one array of images, and views are several",
                hint="postprocess gets all of them, as a tuple",
            )
    if p.layout == "planes":
        raise ParamsError('layout="planes" serves samples as they are stored, without views')
    if p.places:
        raise ParamsError(
            "boxes and keypoints go with one view of an image",
            found=f"views, and field {p.places[0]!r} of places",
            hint="leave views out, or read the field as it is stored: name it in data_field",
        )


def _check_fields(p: ReaderParams) -> None:
    pictures = (p.data_field,) if isinstance(p.data_field, str) else tuple(p.data_field)
    if isinstance(p.data_field, dict):
        pictures = tuple(p.data_field.values())
    twice = [n for n in p.places if n in pictures or p.places.count(n) > 1]
    if twice:
        raise ParamsError(
            f"field {twice[0]!r} is named twice, among data_field, boxes_field and keypoints_field",
            hint="boxes and keypoints come after the fields of data_field",
        )
    if p.data is None:
        return
    if not isinstance(p.data, dict):
        if not isinstance(p.data_field, str) or p.places:
            raise ParamsError(
                "several fields of arrays go as data={name: array, ...}",
                found=type(p.data).__name__,
            )
        return
    lost = [name for name in p.places if name not in p.data]
    if lost or not set(p.data) - set(p.places):
        raise ParamsError(
            "boxes_field and keypoints_field name arrays of data, beside the images",
            found=", ".join(map(repr, lost or p.data)),
            expected=f"some of {', '.join(map(repr, p.data))}, but not all",
        )
    if p.data_field == "data":
        return
    # "jets.pt" may be a member of the array "jets"
    missing = [name for name in pictures if not _prefixes(name) & p.data.keys()]
    if missing or isinstance(p.data_field, str):
        raise ParamsError(
            "data_field does not choose from data's arrays",
            found=repr(p.data_field),
            expected=f"a list of some of {', '.join(map(repr, p.data))}",
        )


def _prefixes(name: str) -> set[str]:
    parts = name.split(".")
    return {".".join(parts[: i + 1]) for i in range(len(parts))}


def _check_windows(p: ReaderParams) -> None:
    window = p.window
    parts = window.rows, p.episodes, p.episodes_subset  # which may be an array
    if p.sample_axis is None and any(part is not None for part in parts):
        raise ParamsError(
            "with sample_axis=None a dataset is one sample; window, episodes and episodes_subset "
            "are of its rows",
            hint='episodes="files", window="episode" serves each file whole',
        )
    edges = window.edge if isinstance(window.edge, tuple) else (window.edge,) * 2
    for edge, rows in zip(edges, window.outside or (), strict=False):
        if edge == "drop" and rows:
            raise ParamsError(
                'window_edge="drop" leaves no row of a window outside',
                found=f"window_outside={window.outside}",
                hint='window_edge="repeat" or "zero" goes with it',
            )
    if window.rows is not None:
        _check_single(p, "not on windows", "boxes_field", "keypoints_field")


def _check_lengths(p: ReaderParams) -> None:
    if p.lengths.most is None:
        return
    if p.mix.ratios is not None:
        raise ParamsError("the datasets of a mix have samples of one length", found="max_length")
    _check_single(p, "not beside samples of different length")


def _check_single(p: ReaderParams, words: str, *others: str) -> None:
    """ParamsError where something is asked for that works on images one by one, or one of
    ``others``."""
    for name in ("transform", "mixup", "cutmix", "views", *others):
        if getattr(p, name) is not None:
            raise ParamsError(
                f"{name} works on single images, {words}", hint="postprocess gets whole batches"
            )


def _check_patches(p: ReaderParams) -> None:
    patch = p.patch
    if patch.shape is None:
        return
    several = patch.step if isinstance(patch.step, tuple) else None
    for name, given in (("patch_axes", patch.axes), ("patch_step", several)):
        if given is not None and len(given) != len(patch.shape):
            raise ParamsError(
                f"{name} has another number of axes than patch",
                found=f"{name}={given}, patch={patch.shape}",
            )
    others = ("mix", "episodes", "episodes_subset", "window", "columns", "members")
    flat = p.flat()
    for name in (*others, "boxes_field", "keypoints_field", "max_length", "offsets_field"):
        if flat[name] not in (None, False):
            raise ParamsError(
                f"patch and {name} do not go together",
                hint="patches are of volumes: HDF5 datasets of numbers, or arrays",
            )
