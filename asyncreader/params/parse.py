"""Checks what a caller passed to a reader, once: names, values, and what they say together."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from ..checks import FLAG, written
from ..errors import ParamsError
from ..sampling import draws, takes_classes, takes_weights, takes_window
from .other_names import instead
from .reader import PARAMETERS, PATHS, READ_BY, SHUFFLE_WINDOW, Described, Given, ReaderParams
from .views import GOES_WITH


def snake_case(name: str) -> str:
    """The canonical spelling of a parameter: ``batchSize`` -> ``batch_size``."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", lambda m: "_" + m.group(1).lower(), name)


def parse_params(params: Given | None, overrides: Mapping[str, object]) -> ReaderParams:
    """Check everything that can be known without opening a file; ParamsError says what is wrong."""
    given = given_params(params, overrides)
    _check_source(given)
    checked = {name: PARAMETERS[name].check(name, value) for name, value in given.items()}
    result = ReaderParams(**checked)  # type: ignore[arg-type]
    _check_together(result)
    return result


def reading_params(
    path: str, given: Mapping[str, object], allowed: Sequence[str] = READ_BY
) -> ReaderParams:
    """``given`` checked, of which only those ``allowed`` say how the set at ``path`` is read."""
    read = parse_params({**given, "path": path}, {})
    unknown = sorted(name for name in given if snake_case(name) not in allowed)
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
    if isinstance(params, Mapping):
        names = {raw: snake_case(raw) for raw in params if isinstance(raw, str)}
        own = {raw: name for raw, name in names.items() if name in flags}
        for raw, name in own.items():
            flags[name] |= FLAG(name, params[raw])
        params = {raw: value for raw, value in params.items() if raw not in own}
    return given_params(params, overrides), flags


def _collect(params: Given | None) -> dict[str, object]:
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
    for raw, value in params.items():
        name = snake_case(raw) if isinstance(raw, str) else raw
        if name not in PARAMETERS:
            raise ParamsError(f"unknown parameter {written(raw)}", hint=instead(str(name), value))
        if name in given:
            raise ParamsError(f"{name!r} is given twice, also as {raw!r}")
        given[name] = value
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
    if given.get("labels_path") is not None:
        if named != ["path"] and named != ["hdf5_path"]:
            raise ParamsError("labels_path goes with path= or hdf5_path=", found=f"{named[0]}=")
        if "labels_field" in given and given["labels_field"] is None:
            raise ParamsError("labels_path is given, but labels_field=None asks for no labels")


def _check_together(p: ReaderParams) -> None:
    dims = p.dims
    if dims is not None and sorted(dims) != [1, 2, 3, 4]:
        raise ParamsError(
            "num_dim, h_dim, w_dim and cha_dim must be a permutation of 1, 2, 3, 4",
            found=f"({', '.join(map(str, dims))})",
        )
    auto = {p.rank, p.world_size} & {"auto"}
    if not auto and not 0 <= int(p.rank) < int(p.world_size):
        raise ParamsError(
            "rank must be below world_size", found=f"rank {p.rank}, world_size {p.world_size}"
        )
    if p.last_batch == "short" and p.world_size not in (1, "auto"):
        raise ParamsError('last_batch="short" needs world_size 1: other ranks would wait for ever')
    for number, one in enumerate(p.arrays):
        try:
            _check_crop(one)
        except ParamsError as exc:
            exc.what = exc.what if p.views is None else f"views[{number}]: {exc.what}"
            raise
    _check_views(p)
    if not takes_window(p.shuffle) and p.shuffle_window != SHUFFLE_WINDOW:
        raise ParamsError('shuffle_window goes with shuffle="block"', found=f"{p.shuffle!r}")
    if p.weights is not None and not takes_weights(p.shuffle):
        raise ParamsError(
            "weights make independent draws, an order of their own",
            found=f"weights and shuffle={p.shuffle!r}",
            hint="leave one of them out",
        )
    some = p.weights is not None or p.mix is not None or draws(p.shuffle)
    some = some or (p.patch is not None and p.patch_at == "random")
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


def _check_mix(p: ReaderParams) -> None:
    several = isinstance(p.labels_field, tuple)
    if several and (p.mix is not None or p.data is not None or p.cuda):
        name = "mix" if p.mix is not None else "data" if p.data is not None else "cuda"
        raise ParamsError(
            f"several labels do not go with {name}=",
            found=f"labels_field={p.labels_field!r}",
            hint="name the others as fields: data_field=[...]",
        )
    if p.mix is None:
        for name in ("mix_until", "classes"):
            if getattr(p, name) != PARAMETERS[name].default:
                raise ParamsError(f"{name} goes with mix", found=f"{name}={getattr(p, name)!r}")
        return
    if p.weights is not None or takes_classes(p.shuffle):
        other = "weights" if p.weights is not None else f"shuffle={p.shuffle!r}"
        raise ParamsError(
            f"mix and {other} both say how often a sample comes",
            hint='leave one of them out; the datasets of a mix take shuffle=True, "block" or '
            '"replacement"',
        )
    if p.epoch_samples is not None and p.mix_until != PARAMETERS["mix_until"].default:
        raise ParamsError(
            "epoch_samples and mix_until both say when an epoch of a mix ends",
            hint="leave one of them out",
        )


def _check_crop(p: ReaderParams) -> None:
    if p.size is None and (p.crop_ratio != 1.0 or p.crop in ("random", "random-resized")):
        names = "crop_padding needs" if p.crop_padding else "crop and crop_ratio need"
        hint = "pass that of the stored images" if p.crop_padding else None
        raise ParamsError(f"{names} size=(H, W)", hint=hint)
    for name, crop in GOES_WITH.items():
        value = getattr(p, name)
        if name != "padding_mode" and value != PARAMETERS[name].default and p.crop != crop:
            raise ParamsError(f'{name} goes with crop="{crop}"', found=f"crop={p.crop!r}")
    if p.padding_mode != "zero" and not p.crop_padding:
        raise ParamsError("padding_mode goes with crop_padding", found="crop_padding=0")


def _check_views(p: ReaderParams) -> None:
    if p.views is None:
        return
    for name, crop in GOES_WITH.items():  # of no view
        value = getattr(p, name)
        if value != PARAMETERS[name].default and crop not in [one.crop for one in p.arrays]:
            raise ParamsError(f'{name} goes with crop="{crop}"', found="views with other crops")
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
            hint="boxes and keypoints come behind the fields of data_field",
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
    asked = p.window is not None
    for name in ("window_edge", "window_outside"):
        if getattr(p, name) != PARAMETERS[name].default and not asked:
            raise ParamsError(f"{name} goes with window", found=f"{name}={getattr(p, name)!r}")
    if p.window_every != 1 and not (asked or p.episodes):
        raise ParamsError("window_every goes with window or episodes", found=f"{p.window_every!r}")
    edges = p.window_edge if isinstance(p.window_edge, tuple) else (p.window_edge,) * 2
    for edge, rows in zip(edges, p.window_outside or (), strict=False):
        if edge == "drop" and rows:
            raise ParamsError(
                'window_edge="drop" leaves no row of a window outside',
                found=f"window_outside={p.window_outside}",
                hint='window_edge="repeat" or "zero" goes with it',
            )
    if asked:
        _check_single(p, "not on windows", "boxes_field", "keypoints_field")


def _check_lengths(p: ReaderParams) -> None:
    if p.max_length is None:
        for name in ("overlong", "pad_value"):
            if getattr(p, name) != PARAMETERS[name].default:
                raise ParamsError(f"{name} goes with max_length", found=f"{getattr(p, name)!r}")
        return
    if p.mix is not None:
        raise ParamsError("the datasets of a mix have samples of one length", found="max_length")
    _check_single(p, "not beside samples of different length")


def _check_single(p: ReaderParams, words: str, *others: str) -> None:
    """ParamsError where something is asked for that works on images one by one, or one of
    ``others``."""
    for name in ("transform", "mixup", "cutmix", "views", *others):
        if getattr(p, name) is not None:
            raise ParamsError(
                f"{name} works on single images, {words}",
                hint="postprocess gets whole batches",
            )


def _check_patches(p: ReaderParams) -> None:
    if p.patch is None:
        for name in ("patch_at", "patch_axes", "patch_step", "sample_axis"):
            if getattr(p, name) != PARAMETERS[name].default:
                raise ParamsError(f"{name} goes with patch", found=f"{name}={getattr(p, name)!r}")
        return
    several = p.patch_step if isinstance(p.patch_step, tuple) else None
    for name, given in (("patch_axes", p.patch_axes), ("patch_step", several)):
        if given is not None and len(given) != len(p.patch):
            raise ParamsError(
                f"{name} has another number of axes than patch",
                found=f"{name}={given}, patch={p.patch}",
            )
    if p.patch_step is not None and p.patch_at != "grid":
        raise ParamsError('patch_step goes with patch_at="grid"', found=f"patch_at={p.patch_at!r}")
    others = ("mix", "episodes", "episodes_subset", "window", "columns", "members")
    for name in (*others, "boxes_field", "keypoints_field", "max_length", "offsets_field"):
        if getattr(p, name) not in (None, False):
            raise ParamsError(
                f"patch and {name} do not go together",
                hint="patches are of volumes: HDF5 datasets of numbers, or arrays",
            )
