"""Tab completion of what click does not know: parameters after ``-p``, and their values, in bash.

bash takes "=" for the end of a word, so that click's own script sees ``-p shuffle=bl`` as three.
The line up to the cursor tells what was typed (GNU Bash manual, 8.6: COMP_LINE, COMP_POINT).
"""

from __future__ import annotations

import os
from typing import Any, ClassVar

from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    split_arg_string,
)

from ..params import PARAMETERS


def complete_param(_context: object, _option: object, typed: str) -> list[CompletionItem[str]]:
    """What ``typed``, the beginning of NAME=VALUE, may become."""
    name, equals, value = typed.partition("=")
    if not equals:
        return [
            CompletionItem(f"{known}=", help=parameter.summary)
            for known, parameter in sorted(PARAMETERS.items())
            if known.startswith(name) and parameter.check.form not in ("paths", "object")
        ]
    if name not in PARAMETERS:
        return []
    if PARAMETERS[name].check.form == "file":
        return [CompletionItem(value, type="file")]
    words = PARAMETERS[name].words
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
