"""The picture of growth: where its points are, and that it can be read on light and dark pages."""

import re
from xml.etree import ElementTree as ET

import pytest

from benchmarks.picture import draw

SVG = "{http://www.w3.org/2000/svg}"
LEVEL = [(10, 5.0), (100, 5.0), (1000, 5.0)]
RISING = [(10, 1.0), (100, 10.0), (1000, 100.0)]


def points(svg, name):
    circles = [each.attrib for each in ET.fromstring(svg).iter(f"{SVG}circle")]
    return [(float(each["cx"]), float(each["cy"])) for each in circles if each["class"] == name]


def test_a_cost_that_stays_is_level():
    places = points(draw("Growth", [(1, "cost")], LEVEL), "now")
    assert len(places) == 3
    assert len({y for _, y in places}) == 1


def test_a_cost_that_grows_as_its_cause_is_a_straight_line():
    (x1, y1), (x2, y2), (x3, y3) = points(draw("Growth", [(1, "cost")], RISING), "now")
    assert x1 < x2 < x3
    assert y1 > y2 > y3  # upward
    assert y1 - y2 == pytest.approx(y2 - y3, abs=0.2)


def test_both_runs_share_their_axes():
    svg = draw("Growth", [(1, "cost")], LEVEL, RISING)
    now, before = points(svg, "now"), points(svg, "before")
    assert [x for x, _ in now] == [x for x, _ in before]
    assert before[0][1] > now[0][1] > before[1][1]
    assert {"before", "now", "cost"} <= {text.text for text in ET.fromstring(svg).iter(f"{SVG}text")}


def test_a_cost_of_nothing_stands_at_the_bottom():
    places = points(draw("Growth", [(1, "cost")], [(10, 0.0), (100, 0.1), (1000, 1.0)]), "now")
    assert places[0][1] == places[1][1] > places[2][1]


def test_each_panel_is_within_the_picture():
    text = draw("Growth", [(1, "a"), (1, "b & c")], RISING)
    width, height = (float(ET.fromstring(text).attrib["viewBox"].split()[place]) for place in (2, 3))
    aside = [float(number) for number in re.findall(r"translate\((\d+) 0\)", text)]
    assert aside == [0, width / 2]
    assert all(0 < x < width / 2 and 0 < y < height for x, y in points(text, "now"))


def test_every_colour_has_another_one_for_dark_pages():
    style = draw("Growth", [(1, "cost")], LEVEL).partition("<style>")[2].partition("</style>")[0]
    light, dark = style.split("@media (prefers-color-scheme: dark)")
    assert set(re.findall(r"#\w+", light)).isdisjoint(re.findall(r"#\w+", dark))
    assert coloured(light) == coloured(dark.partition("{")[2])


def coloured(style):
    """What the rules that name a colour are for."""
    return {rule.split("{")[0].strip() for rule in style.split("}") if "#" in rule}
