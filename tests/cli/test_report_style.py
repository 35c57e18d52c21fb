"""The report's colours, measured: readable in light and dark, and told apart by everybody.

Contrast is that of WCAG 2; how people with a colour-vision deficiency see is simulated by the
matrices of Machado, Oliveira and Fernandes (2009) for complete deficiency; how far two colours are
apart is the distance in CIE L*a*b* (1976: about 2.3 can just be told apart side by side).
"""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import pytest

import outlast.cli

SHEET = Path(outlast.cli.__file__).parent / "templates" / "report.css"
RGB = tuple[float, float, float]

SEEN_BY = {
    "most": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopes": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopes": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopes": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
    "paper without colour": ((0.2126, 0.7152, 0.0722),) * 3,
}
PHASES = ("detecting", "unavailable", "reconnecting", "resuming")


def themes() -> dict[str, dict[str, str]]:
    """The colours of light and dark, by name; dark ones replace light ones."""
    light, dark = re.findall(r":root \{(.*?)\}", SHEET.read_text(encoding="utf-8"), re.DOTALL)[:2]
    named = [dict(re.findall(r"--([\w-]+): (#\w{6});", text)) for text in (light, dark)]
    assert len(named[0]) == len(named[1]) > 20
    return {"light": named[0], "dark": {**named[0], **named[1]}}


def linear(colour: str) -> RGB:
    """Amounts of light."""
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return red, green, blue


def luminance(colour: str) -> float:
    red, green, blue = linear(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def seen(colour: str, by: str) -> RGB:
    rgb = linear(colour)
    red, green, blue = (
        min(max(sum(m * c for m, c in zip(row, rgb, strict=True)), 0), 1) for row in SEEN_BY[by]
    )
    return red, green, blue


def lab(rgb: RGB) -> RGB:
    red, green, blue = rgb
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.95047
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.08883
    fx, fy, fz = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


def apart(one: str, other: str, by: str) -> float:
    pairs = zip(lab(seen(one, by)), lab(seen(other, by)), strict=True)
    return float(sum((a - b) ** 2 for a, b in pairs) ** 0.5)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_can_be_read(theme: str) -> None:
    colours = themes()[theme]
    for ink in ("ink", "soft", "good", "warning", "bad"):
        for paper in ("paper", "raised"):
            assert contrast(colours[ink], colours[paper]) >= 4.5, (ink, paper)
    for word in ("good", "warning", "bad"):
        assert contrast(colours[word], colours[f"{word}-paper"]) >= 4.5, word


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_bars_stand_out_from_their_row(theme: str) -> None:
    colours = themes()[theme]
    for name in PHASES:
        assert contrast(colours[name], colours["accepting"]) >= 1.4, name
        assert apart(colours[name], colours["accepting"], "most") > 35, name
    assert contrast(colours["stall"], colours["stall-paper"]) >= 3


@pytest.mark.parametrize("by", SEEN_BY)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_phases_are_told_apart_by_everybody(theme: str, by: str) -> None:
    colours = themes()[theme]
    least = 8 if by == "paper without colour" else 20
    for one, other in combinations(PHASES, 2):
        assert apart(colours[one], colours[other], by) >= least, (one, other)


@pytest.mark.parametrize("by", SEEN_BY)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_cluster_and_client_are_told_apart_by_everybody(theme: str, by: str) -> None:
    colours = themes()[theme]
    least = 8 if by == "paper without colour" else 20
    assert apart(colours["cluster"], colours["client"], by) >= least


def test_the_measure_finds_what_cannot_be_told_apart() -> None:
    red, green = "#c8492f", "#5f7d1f"
    assert apart(red, green, "most") > 60
    assert apart(red, green, "deuteranopes") < 20
    assert apart(red, green, "protanopes") < 45
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
