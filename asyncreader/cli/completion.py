"""Tab completion of what click does not know: parameters after ``-p``, and their values, in bash.

bash takes "=" for the end of a word, so that click's own script sees ``-p shuffle=bl`` as three.
The line up to the cursor tells what was typed (GNU Bash manual, 8.6: COMP_LINE, COMP_POINT).
"""

from __future__ import annotations

import os
from typing import Any, ClassVar, Final

from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    split_arg_string,
)

_SWITCH: Final = "true false"

#: Parameters of AsyncReader, with words that are values of theirs. A table, for importing the
#: parameters themselves takes longer than a Tab may.
WORDS: Final = {
    "batch_size": "",
    "cha_dim": "1 2 3 4",
    "channel_order": "RGB stored",
    "contiguous": _SWITCH,
    "copy": _SWITCH,
    "crop": "center none random random-resized",
    "crop_ratio": "",
    "cuda": _SWITCH,
    "data_field": "",
    "debug": _SWITCH,
    "dtype": "float16 float32 float64",
    "epochs": "",
    "flip": _SWITCH,
    "h_dim": "1 2 3 4",
    "io": "auto mmap pread",
    "labels_field": "None",
    "labels_path": "",
    "last_batch": "drop pad short wrap",
    "layout": "NCHW NHWC",
    "mean": "",
    "njob": "",
    "nthread": "auto",
    "num_dim": "1 2 3 4",
    "on_error": "raise skip zero",
    "postprocess": "",
    "rank": "auto",
    "scale": "",
    "seed": "",
    "shuffle": "true false block replacement",
    "shuffle_window": "",
    "size": "",
    "std": "",
    "subset": "",
    "timeout": "",
    "trace": "",
    "verify": "always first never",
    "w_dim": "1 2 3 4",
    "workers": "process thread",
    "world_size": "auto",
}

#: Parameters that name a file.
_FILES: Final = frozenset({"labels_path", "trace"})


def complete_param(_context: Any, _param: Any, typed: str) -> list[CompletionItem[str]]:
    """What ``typed``, the beginning of NAME=VALUE, may become."""
    name, equals, value = typed.partition("=")
    if not equals:
        return [CompletionItem(f"{known}=") for known in WORDS if known.startswith(name)]
    if name in _FILES:
        return [CompletionItem(value, type="file")]
    words = WORDS.get(name, "").split()
    return [CompletionItem(f"{name}={word}") for word in words if word.startswith(value)]


class _Bash(BashComplete):
    """bash, told the whole line."""

    name: ClassVar[str] = "bash"
    source_template: ClassVar[str] = """\
%(complete_func)s() {
    local IFS=$'\\n'
    local type value

    while IFS=',' read -r type value; do
        case $type in
            dir) COMPREPLY=(); compopt -o dirnames ;;
            file) COMPREPLY=(); compopt -o default ;;
            plain) COMPREPLY+=("$value"); [[ $value == *= ]] && compopt -o nospace ;;
        esac
    done < <(env COMP_LINE="${COMP_LINE:0:COMP_POINT}" %(complete_var)s=bash_complete $1)
    return 0
}

%(complete_func)s_setup() {
    complete -o nosort -F %(complete_func)s %(prog_name)s
}

%(complete_func)s_setup;
"""

    def get_completion_args(self) -> tuple[list[str], str]:
        line = os.environ["COMP_LINE"]
        words = split_arg_string(line)[1:]
        self._typed = "" if not words or line[-1].isspace() else words.pop()
        return words, self._typed

    def format_completion(self, item: CompletionItem[Any]) -> str:
        # bash replaces only what follows the last "="
        ahead = self._typed[: self._typed.rfind("=") + 1]
        return f"{item.type},{str(item.value).removeprefix(ahead)}"


add_completion_class(_Bash)
