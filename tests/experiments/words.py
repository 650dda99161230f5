"""The numbers that a text names, and those of them that no setting of the run explains."""

import dataclasses
import re

COUNTS = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10}
NAMES = re.compile(
    r"(TuRBO|CIFAR|SST|OPT)-[\d.]+[MB]?|Matérn \d/2|"
    r"log(10|₁₀)|F1|L∞|1/t|γ = 1\b|1/√M|95% (interval|band)s?|8 x 8|8d|\(d\+1\)|x_\{r−1\}"
    r"|(eq\.|Fig\.|Figure|Table|Theorem) \d+[ab]?"
)
"""Names with digits in them."""
NUMBER = re.compile(r"(?<![\w.])(\d[\d,]*\d|\d)(\.\d+)?(e-?\d+)?(%?)")

NOT_SETTINGS = {
    "zord-fig1": {5},
    "zord-fig3": {0.3},
    "zord-fig4": {2189},
    "fzoos-fig1": {0.25},
    "hiso-fig4": {2},
    "hiso-fig5": {0.1},
    "hiso-fig6": {40, 90},
    "hiso-bytes": {40, 90, 1024},
    "hiso-table2": {1024},
    "hiso-table5": {1024},
    "beyond-gamma": {0.25, 1},
    "beyond-liars": {3},
    "beyond-zord": {0.3, 3},
    "beyond-curvature": {1e-10, 0.75},
    "beyond-parallel": {0.3, 0.5},
    "fourier-features": {4, 0.1},
}
"""Numbers that a text may name although no setting decides them: thresholds and sizes of networks."""


def numbers(text):
    """Every number of a text, in digits or as a word."""
    text = NAMES.sub(" ", text)
    found = [
        float(n[1].replace(",", "") + (n[2] or "") + (n[3] or "")) / (100 if n[4] else 1) for n in NUMBER.finditer(text)
    ]
    return found + [float(COUNTS[word]) for word in re.findall(r"[a-z]+", text.lower()) if word in COUNTS]


def of_settings(value):
    """Every number of some settings: values, and how many there are where there are several."""
    if dataclasses.is_dataclass(value):
        return set().union(*(of_settings(getattr(value, field.name)) for field in dataclasses.fields(value)))
    if isinstance(value, (tuple, list)):
        return {float(len(value))}.union(*map(of_settings, value))
    return {float(value)} if isinstance(value, (int, float)) else set()


def unexplained(text, settings, name="", seeds=()):
    """The numbers of a text that neither the settings nor the seeds have, and that are on no list of the experiment."""
    known = of_settings(settings) | {float(len(seeds))} | {float(number) for number in NOT_SETTINGS.get(name, ())}
    return [number for number in numbers(text) if not any(abs(number - other) <= 1e-9 * abs(other) for other in known)]
