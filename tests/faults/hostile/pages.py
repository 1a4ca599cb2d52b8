"""Looks through a page of ``preview --html``: nothing in it may be markup but what we wrote."""

import base64
import hashlib
import re
from html.parser import HTMLParser

#: Tags that our pages are made of; whatever else is found came out of a set.
TAGS = set(
    re.findall(
        r"\w+",
        "html head meta link title style body script header h1 h2 h3 p dl dt dd div section ul li "
        "span b a button input table thead tbody tr th td figure figcaption img svg g path rect "
        "line text footer details summary small code",
    )
)
#: Attributes that a browser goes to, or runs.
_GOES = {"src", "href", "srcset", "data", "action", "formaction", "poster", "background"}


class _PageParser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.sources: dict[str, list[str]] = {"style": [], "script": []}
        self.policies: list[str] = []
        self._inside: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in TAGS:
            self.found.append(f"the tag <{tag}>")
        for name, value in attrs:
            if name.startswith("on") or name in ("style", "srcdoc"):
                self.found.append(f"{name}= of <{tag}>")
            if name in _GOES and not (value or "").startswith(("data:", "#")):
                self.found.append(f"{name}={value!r} of <{tag}>")
        if tag in self.sources:
            self.sources[tag].append("")
            self._inside = tag
        given = dict(attrs)
        if tag == "meta" and given.get("http-equiv"):
            self.policies.append(given.get("content") or "")

    def handle_endtag(self, tag: str) -> None:
        self._inside = None

    def handle_data(self, data: str) -> None:
        if self._inside is not None:
            self.sources[self._inside][-1] += data
        elif not data.replace("\n", "").replace("\xa0", "").isprintable():
            self.found.append(f"control characters: {data[:100]!r}")


def injected(page: str) -> list[str]:
    """What is in a page that asyncreader did not write; must be empty."""
    parser = _PageParser()
    parser.feed(page)
    parser.close()
    found = parser.found
    if "<!--" in page:  # one without an end is text to Python's parser
        found.append("a comment")
    if len(parser.policies) != 1:
        return [*found, f"{len(parser.policies)} policies"]
    for kind, texts in parser.sources.items():
        digests = [base64.b64encode(hashlib.sha256(t.encode()).digest()).decode() for t in texts]
        allowed = re.findall(rf"{kind}-src 'sha256-([^']*)'", parser.policies[0])
        if digests != allowed or len(digests) != 1:
            found.append(f"{len(digests)} of <{kind}>, not the one that the policy allows")
    return found
