"""Names that parameters have in other libraries, and what to write here instead."""

from __future__ import annotations

import os
import re
from typing import Final

from .. import checks
from ..errors import ParamsError
from ..system.text import plain_name, slip
from .reader import PARAMETERS

#: Names from torch, torchvision, FFCV, DALI, Keras, tf.data and WebDataset, and of what other
#: libraries have and this one has not, without punctuation; and what to write here instead. ``{}``
#: is the value that was passed.
_THREADS: Final = "nthread={} (worker threads; they need no processes)"
_AHEAD: Final = "njob={} (batches in flight)"
_PATH_IS: Final = "path={}"
_SIZE_IS: Final = "size={}"
_OWN_CODE: Final = (
    "size=(H, W), crop=, flip=, augment=, dtype=, scale=, mean= and std=, which cover the usual "
    "ones, or transform=f for a function f(image, label) of each sample"
)
_BY_RNG: Final = (
    "postprocess=f for a function f(data, labels, rng) that does it to a whole batch "
    "(docs/augmentation.md shows one)"
)
_AFFINE: Final = (
    'augment=[("random-affine", {{"degrees": 10}})], with translate, scale or shear '
    "(docs/augmentation.md)"
)
_JITTER: Final = (
    'augment=[("color-jitter", {{"brightness": 0.4}})], with contrast, saturation or hue '
    "(docs/augmentation.md)"
)
_ONE_HOT: Final = "num_classes= of labels as rows of probabilities, (B, classes) float32"
_CLASSES: Final = (
    "nothing instead: labels are class numbers, and reader.classes has the names where the "
    "dataset has them"
)
_OFTEN: Final = (
    'weights="balanced" for classes alike, or weights= with a number for each sample '
    "(docs/splits-and-balance.md)"
)
_GREY: Final = "nothing instead: asyncreader convert --channels 1 packs grey images"
_PADDED: Final = (
    'crop="random", crop_padding={} for images; max_length=, pad_value= for samples that differ in '
    "length (docs/arrays.md)"
)
_LENGTHS: Final = "max_length=, pad_value= for samples that differ in length (docs/arrays.md)"
_WINDOW: Final = (
    'window={} of rows of one episode; episodes="files" where each file is one, "whole" where all '
    "rows are"
)
_PROCESSES: Final = 'workers="process" if processes are needed, else leave it out'
_WINDOWED: Final = 'shuffle="block", shuffle_window={}'
_LAST: Final = 'last_batch="drop" for True; "short", "pad" or "wrap" for False'
_EPOCHS: Final = "epochs={} to end after so many epochs; without it they are repeated without end"
_FIRST_ONES: Final = "subset=slice(0, {}) for the first ones"
_RANKS: Final = 'rank="auto", world_size="auto"'


def _answers(*pairs: tuple[str, str]) -> dict[str, str]:
    """From pairs of several names, as one text, and their answer."""
    return {name: answer for names, answer in pairs for name in names.split()}


OTHER_NAMES: Final[dict[str, str]] = _answers(
    ("numworkers nworkers numthreads threads jobs numparallelcalls readthreads", _THREADS),
    ("numparallelreads numreaders workerscount", _THREADS),
    ("prefetchfactor prefetch batchesahead maxqueuesize queuesize buffers", _AHEAD),
    ("prefetchqueuedepth prefetchbatches prefetchsize", _AHEAD),
    ("droplast dropremainder", _LAST),
    ("drop", 'last_batch="drop"'),
    ("padlastbatch", 'last_batch="pad"'),
    ("lastbatchpolicy lastbatchhandle partial", 'last_batch="drop", "short", "pad" or "wrap"'),
    ("transforms augmentation augmentations pipelines pipeline tfms", _OWN_CODE),
    ("preprocessingfunction preprocess imagetransform itemtfms preprocessing", _OWN_CODE),
    ("map mapfn batchtransform batchtfms", "postprocess=f for a function f(data, labels)"),
    (
        "labelsdtype labeldtype targetdtype targetsdtype",
        "nothing instead: cast labels in the loop, or with postprocess=f (docs/labels-from-csv.md)",
    ),
    ("targettransform", "postprocess=f for a function f(data, labels) that changes the labels"),
    ("collatefn collate", "postprocess=f for a function f(data, labels) of joined batches"),
    (
        "rotate rotation rotationrange randomrotation degrees",
        'augment=[("random-rotation", {{"degrees": {}}})]',
    ),
    ("affine randomaffine shear shearrange zoom zoomrange randomzoom translate", _AFFINE),
    ("widthshiftrange heightshiftrange", _AFFINE),
    ("perspective randomperspective", 'augment="random-perspective"'),
    ("vflip verticalflip randomverticalflip flipud", 'augment="random-vertical-flip"'),
    ("colorjitter colourjitter color jitter brightness brightnessrange", _JITTER),
    ("contrast saturation hue", _JITTER),
    ("sharpness", 'augment=[("random-sharpness", {{"sharpness_factor": 2}})]'),
    ("gaussianblur blur", 'augment=[("gaussian-blur", {{"kernel_size": 9}})]'),
    ("randomgrayscale", 'augment="random-grayscale"'),
    ("randomerasing erasing cutout", 'augment="random-erasing"'),
    ("randaugment", 'augment="rand-augment"'),
    ("autoaugment", 'augment="auto-augment"'),
    ("trivialaugment trivialaugmentwide", 'augment="trivial-augment-wide"'),
    ("posterize", 'augment=[("random-posterize", {{"bits": 4}})]'),
    ("solarize", 'augment=[("random-solarize", {{"threshold": 128}})]'),
    ("equalize", 'augment="random-equalize"'),
    ("autocontrast", 'augment="random-autocontrast"'),
    ("channelshiftrange elastic noise augmix invert lighting pca cropping clip clamp", _BY_RNG),
    ("randompad", 'crop="random", crop_padding={}'),
    ("padding pad", _PADDED),
    ("maxlen sequencemaxlength truncation paddingvalue padtokenid padidx", _LENGTHS),
    ("numviews nviews multicrop multicrops twocrops ncrops numcrops", "views={}"),
    ("mixupalpha", "mixup={}"),
    ("cutmixalpha", "cutmix={}"),
    ("smoothing", "label_smoothing={}"),
    ("onehot labelmode classmode categorical", _ONE_HOT),
    ("nclasses nbclasses classnames labelnames", _CLASSES),
    ("weight classweights classweight sampleweights sampleweight balanced balance", _OFTEN),
    ("weightedsampler oversample upsample", _OFTEN),
    ("grayscale greyscale gray grey colormode numchannels channels inchannels", _GREY),
    ("bs batch samplespergpu batchsizeperreplica", "batch_size={}"),
    ("pinmemory", "cuda=True for batches on the GPU, else leave it out"),
    ("pinmemorydevice device deviceid gpu gpuid", 'cuda="cuda:0" or True'),
    (
        "sampler batchsampler indices",
        "shuffle=True for a random order, subset=[3, 1, 4] for record numbers of your own",
    ),
    ("imagesize imgsize targetsize inputsize resize resolution imgsz cropsize", _SIZE_IS),
    ("imageshape inputshape outputsize resizeto", _SIZE_IS),
    ("persistentworkers", "nothing instead: workers live as long as the reader"),
    ("multiprocessingcontext usemultiprocessing processes numprocesses numproc", _PROCESSES),
    ("workerinitfn", "postprocess=f for a function f(data, labels, rng): rng is seeded for it"),
    ("dataset root directory datadir fname filename file filepath datapath db source", _PATH_IS),
    ("fileroot imagedir imgdir folder dataroot filelist files filenames urls url", _PATH_IS),
    ("h5 h5path hdf5 lmdb dbpath datasetpath", _PATH_IS),
    ("x features array arrays tensors images", "data= for arrays, path= for a file"),
    ("y target targets", "labels= for arrays, labels_field= for names in a file"),
    ("imagekey imagefield datakey key keys", "data_field={}"),
    ("labelkey targetfield targetkey labelname", "labels_field={}"),
    ("generator", "seed=0"),
    ("randomstate randomseed manualseed rng", "seed={}"),
    ("order", 'shuffle=True, shuffle="block" (quasi-random) or leave it out (sequential)'),
    ("shufflebuffer buffersize shufflebuffersize initialfill", _WINDOWED),
    ("randomshuffle reshuffleeachiteration", "shuffle=True: another order each epoch"),
    ("replacement", 'shuffle="replacement"'),
    ("numsamples limit maxsamples", _FIRST_ONES),
    ("samplesperepoch epochsize", "epoch_samples={}, with weights="),
    ("oscache mmap memmap mmapmode", 'io="mmap" for True, io="pread" for False'),
    ("cache inmemory cacheinmemory", "nothing instead: the system keeps what was read in memory"),
    ("numreplicas numshards", "world_size={}"),
    ("shardid", "rank={}"),
    ("distributed ddp", _RANKS),
    ("localrank", _RANKS + ", and cuda= for the device"),
    ("channelslast dataformat memoryformat", 'layout="NHWC"'),
    ("channelsfirst", 'layout="NCHW"'),
    ("rescale", "scale={}"),
    ("normalize normalise normalization", 'dtype="float32", scale=1/255, mean=(...), std=(...)'),
    ("totensor tofloat", 'dtype="float32", scale=1/255'),
    ("half fp16 tohalf", 'dtype="float16", scale=1/255'),
    ("horizontalflip randomflip randomhorizontalflip hflip fliplr mirror", "flip=True"),
    ("randomcrop", 'size=(H, W), crop="random"'),
    ("centercrop centrecrop", 'size=(H, W), crop="center"'),
    ("randomresizedcrop", 'size=(H, W), crop="random-resized"'),
    ("cropscale arearange scalerange", 'crop="random-resized", crop_area={}'),
    ("ratio aspectratio", 'crop="random-resized", crop_aspect={}'),
    ("antialias", 'interpolation="bilinear" or "bicubic": both are antialiased'),
    ("split validationsplit", 'subset="train", or subset=slice(0, 1000)'),
    ("train mode phase", 'path= of that part, or subset="train" where the file has parts'),
    ("numepochs nepochs maxepochs repeat", _EPOCHS),
    ("startepoch resume state", "nothing instead: call reader.load_state_dict(state)"),
    ("returnindices withindex withindices", "nothing instead: they are batch.indices"),
    ("deterministic", "nothing instead: the order follows from seed=, never from threads"),
    ("ignoreerrors skiperrors skipbad handler onbad", 'on_error="skip"'),
    ("profile profiler", 'trace="trace.json"'),
    ("datasets concat", "path=[...] for files as one dataset, mix={{path: ratio}} for shares"),
    ("proportions proportion ratios mixing sampleprobs streams", "mix={{path: ratio}}"),
    ("masks maskfield mask", 'data_field=["data", "mask"] (docs/masks-and-fields.md)'),
    ("windowsize seqlen seqlength sequencelength numframes horizon", _WINDOW),
    ("padframestack padseqlength padbefore padafter", 'window_edge="repeat"'),
    ("deltatimestamps", "window={{field: [rows relative to the anchor], ...}}"),
)  # fmt: skip


def instead(name: str, value: object) -> str:
    """What to write instead of an unknown parameter: of a name that is known from elsewhere, or of
    one that is a parameter's but for a slip of the keyboard. There are no other guesses."""
    known = plain_name(name)
    if known not in OTHER_NAMES:
        near = slip(name, PARAMETERS)
        if near is not None:
            return f"did you mean {near!r}?"
        known = slip(known, OTHER_NAMES) or ""
    habit = OTHER_NAMES.get(known)
    if habit is None:
        return "docs/parameters.md and help(AsyncReader) list all parameters"
    value = checks.plain(value)
    if habit in (_THREADS, _AHEAD) and value == 0:  # "no processes", "nothing ahead"
        value = 1
    if habit is _SIZE_IS and type(value) is int:
        value = (value, value)
    elif habit is _SIZE_IS and isinstance(value, tuple | list) and len(value) != 2:
        habit = "size=(H, W)"  # with channels, perhaps
    return "write " + habit.format(_shown_in(habit, value))


def _shown_in(habit: str, value: object) -> str:
    """``value`` as ``habit`` shows it, if the parameter there takes it; else dots."""
    named = re.search(r"(\w+)=\{\}", habit)
    if named is not None and named[1] in PARAMETERS:
        try:
            PARAMETERS[named[1]].check(named[1], value)
        except ParamsError:
            return "..."
    simple = isinstance(value, str | os.PathLike | int | float | tuple | list)
    if not simple or isinstance(value, bool):
        return "..."
    text = checks.written(os.fspath(value) if isinstance(value, os.PathLike) else value)
    return text if len(text) <= 80 else "..."
