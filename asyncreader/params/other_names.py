"""Names that parameters have in other libraries, and what to write here instead."""

from __future__ import annotations

import os
import re
from typing import Final

from ..errors import ParamsError
from ..system import checks
from ..system.text import plain_name, slip
from .reader import PARAMETERS, SHOWN

#: Names from torch, torchvision, FFCV, DALI, Keras, tf.data and WebDataset, and of what other
#: libraries have and this one has not, without punctuation; and what to write here instead. ``{}``
#: is the value that was passed. Lines that begin with spaces go on with the one before.
_TABLE: Final = """
numworkers numthreads threads numparallelcalls -> nthread={} (worker threads; they need no
    processes)
prefetchfactor prefetch -> njob={} (batches in flight)
droplast dropremainder -> last_batch="drop" for True; "short", "pad" or "wrap" for False
drop -> last_batch="drop"
padlastbatch -> last_batch="pad"
lastbatchpolicy -> last_batch="drop", "short", "pad" or "wrap"
transforms imagetransform augmentation augmentations pipelines pipeline preprocessingfunction
    preprocess preprocessing -> size=(H, W), crop=, flip=, augment=, dtype=, scale=, mean= and
    std=, which cover the usual ones, or transform=f for a function f(image, label) of each sample
map batchtransform -> postprocess=f for a function f(data, labels)
labelsdtype -> nothing instead: cast labels in the loop, or with postprocess=f
    (docs/labels-from-csv.md)
targettransform -> postprocess=f for a function f(data, labels) that changes the labels
collatefn collate -> postprocess=f for a function f(data, labels) of joined batches
rotate rotation rotationrange randomrotation degrees -> augment=[("random-rotation",
    {{"degrees": {}}})]
affine randomaffine shear shearrange zoom zoomrange randomzoom translate ->
    augment=[("random-affine", {{"degrees": 10}})], with translate, scale or shear
    (docs/augmentation.md)
perspective randomperspective -> augment="random-perspective"
vflip verticalflip randomverticalflip -> augment="random-vertical-flip"
colorjitter colourjitter color jitter brightness brightnessrange contrast saturation hue ->
    augment=[("color-jitter", {{"brightness": 0.4}})], with contrast, saturation or hue
    (docs/augmentation.md)
sharpness -> augment=[("random-sharpness", {{"sharpness_factor": 2}})]
gaussianblur blur -> augment=[("gaussian-blur", {{"kernel_size": 9}})]
randomgrayscale -> augment="random-grayscale"
randomerasing erasing -> augment="random-erasing"
randaugment -> augment="rand-augment"
autoaugment -> augment="auto-augment"
trivialaugment -> augment="trivial-augment-wide"
posterize -> augment=[("random-posterize", {{"bits": 4}})]
solarize -> augment=[("random-solarize", {{"threshold": 128}})]
equalize -> augment="random-equalize"
autocontrast -> augment="random-autocontrast"
elastic noise clip -> postprocess=f for a function f(data, labels, rng) that does it to a whole
    batch (docs/augmentation.md shows one)
randompad -> crop="random", crop_padding={}
padding pad -> crop="random", crop_padding={} for images; max_length=, pad_value= for samples
    that differ in length (docs/lengths.md)
maxlen sequencemaxlength truncation paddingvalue -> max_length=, pad_value= for samples that
    differ in length (docs/lengths.md)
numviews nviews -> views={}
mixupalpha -> mixup={}
cutmixalpha -> cutmix={}
smoothing -> label_smoothing={}
onehot categorical -> num_classes= of labels as rows of probabilities, (B, classes) float32
nclasses classnames labelnames -> nothing instead: labels are class numbers, and reader.classes
    has the names where the dataset has them
weight classweights classweight sampleweights sampleweight balanced balance oversample ->
    weights="balanced" for classes alike, or weights= with a number for each sample
    (docs/splits-and-balance.md)
grayscale gray grey colormode numchannels channels -> nothing instead: asyncreader convert
    --channels 1 packs grey images
bs batch batchsizeperreplica -> batch_size={}
pinmemory -> cuda=True for batches on the GPU, else leave it out
pinmemorydevice device deviceid gpu -> cuda="cuda:0" or True
sampler batchsampler indices -> shuffle=True for a random order, subset=[3, 1, 4] for record
    numbers of your own
imagesize imgsize targetsize inputsize resize resolution imageshape inputshape outputsize ->
    size={}
persistentworkers -> nothing instead: workers live as long as the reader
multiprocessingcontext usemultiprocessing processes numprocesses -> workers="process" if
    processes are needed, else leave it out
workerinitfn -> postprocess=f for a function f(data, labels, rng): rng is seeded for it
dataset root directory datadir fname filename file filepath datapath db source fileroot folder
    files filenames urls url h5 h5path hdf5 lmdb -> path={}
x features array arrays tensors images -> data= for arrays, path= for a file
y target targets -> labels= for arrays, labels_field= for names in a file
datakey key keys -> data_field={}
labelkey labelname -> labels_field={}
generator -> seed=0
randomstate randomseed manualseed rng -> seed={}
order -> shuffle=True, shuffle="block" (quasi-random) or leave it out (sequential)
shufflebuffer buffersize shufflebuffersize -> shuffle="block", shuffle_window={}
randomshuffle reshuffleeachiteration -> shuffle=True: another order each epoch
replacement -> shuffle="replacement"
numsamples limit -> subset=slice(0, {}) for the first ones
samplesperepoch epochsize -> epoch_samples={}, with weights=
mmap memmap -> io="mmap" for True, io="pread" for False
cache cacheinmemory -> nothing instead: the system keeps what was read in memory
numreplicas numshards -> world_size={}
shardid -> rank={}
distributed -> rank="auto", world_size="auto"
localrank -> rank="auto", world_size="auto", and cuda= for the device
channelslast dataformat -> layout="NHWC"
channelsfirst -> layout="NCHW"
rescale -> scale={}
normalize normalise normalization -> dtype="float32", scale=1/255, mean=(...), std=(...)
totensor tofloat -> dtype="float32", scale=1/255
half fp16 -> dtype="float16", scale=1/255
horizontalflip randomflip randomhorizontalflip hflip mirror -> flip=True
randomcrop -> size=(H, W), crop="random"
centercrop -> size=(H, W), crop="center"
randomresizedcrop -> size=(H, W), crop="random-resized"
cropscale -> crop="random-resized", crop_area={}
ratio -> crop="random-resized", crop_aspect={}
antialias -> interpolation="bilinear" or "bicubic": both are antialiased
split validationsplit -> subset="train", or subset=slice(0, 1000)
train mode phase -> path= of that part, or subset="train" where the file has parts
numepochs maxepochs repeat -> epochs={} to end after that many epochs; without it they are
    repeated without end
resume state -> nothing instead: call reader.load_state_dict(state)
returnindices withindex withindices -> nothing instead: they are batch.indices
deterministic -> nothing instead: the order follows from seed=, never from threads
ignoreerrors skipbad -> on_error="skip"
profile -> trace="trace.json"
datasets concat -> path=[...] for files as one dataset, mix={{path: ratio}} for shares
proportions proportion ratios -> mix={{path: ratio}}
masks mask -> data_field=["data", "mask"] (docs/masks-and-fields.md)
windowsize seqlen seqlength sequencelength -> window={} of rows of one episode; episodes="files"
    where each file is one, "whole" where all rows are
padbefore padafter -> window_edge="repeat"
deltatimestamps -> window={{field: [rows relative to the anchor], ...}}
"""

#: The answers by name.
OTHER_NAMES: Final[dict[str, str]] = {
    name: answer
    for names, _, answer in (
        line.partition(" -> ") for line in _TABLE.strip().replace("\n    ", " ").splitlines()
    )
    for name in names.split()
}


def instead(name: str, value: object) -> str:
    """What to write instead of an unknown parameter: of a name that is known from elsewhere, or of
    one that is a parameter's but for a slip of the keyboard. There are no other guesses."""
    known = plain_name(name)
    if known not in OTHER_NAMES:
        near = slip(name, {**SHOWN, **PARAMETERS})
        if near is not None:
            return f"did you mean {near!r}?"
        known = slip(known, OTHER_NAMES) or ""
    habit = OTHER_NAMES.get(known)
    if habit is None:
        return "docs/parameters.md and help(AsyncReader) list all parameters"
    value = checks.plain(value)
    if habit.startswith(("nthread={}", "njob={}")) and value == 0:  # "no processes", none ahead
        value = 1
    if habit == "size={}" and type(value) is int:
        value = (value, value)
    elif habit == "size={}" and isinstance(value, tuple | list) and len(value) != 2:
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
