"""The report in a real browser, as wide as a screen and as narrow as a phone: nothing overlaps, nothing sticks out."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from html import escape
from pathlib import Path
from typing import Any

import pytest

from seatrial.reports import html
from tests import samples

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
HINT = f"no browser found (looked for {', '.join(NAMES)}); install one: apt-get install chromium"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
MEASURE = """
const box = (node) => { const range = document.createRange(); range.selectNodeContents(node);
  return [...range.getClientRects()].filter(r => r.width > 0.5 && r.height > 0.5); };
const meet = (a, b) => Math.min(Math.min(a.right, b.right) - Math.max(a.left, b.left),
                                Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top));
const measure = () => {
  const found = {overflow: document.documentElement.scrollWidth - innerWidth, drawn: 0, texts: 0,
                 collisions: [], outside: [], unitless: [], overprinted: []};
  for (const svg of document.querySelectorAll('svg')) {
    const frame = svg.getBoundingClientRect();
    if (!svg.checkVisibility()) continue;
    found.drawn += 1;
    const texts = [...svg.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]);
    const titles = [...svg.querySelectorAll('text.axis')].map(t => t.textContent);
    if (titles.length != 2 || !titles.every(t => /\\S \\([^)]+\\)$/.test(t))) found.unitless.push(titles);
    texts.forEach(([name, a], at) => {
      if (a.left < frame.left - 0.5 || a.right > frame.right + 0.5 || a.top < frame.top - 0.5
          || a.bottom > frame.bottom + 0.5) found.outside.push(name);
      for (const [other, b] of texts.slice(at + 1)) if (meet(a, b) > 0.5) found.collisions.push([name, other]);
    });
  }
  const lines = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    if (!node.textContent.trim() || node.parentElement.closest('svg, script, .unseen')
        || !node.parentElement.checkVisibility()) continue;
    found.texts += 1;
    for (const rect of box(node)) lines.push([node.textContent.trim(), rect]);
  }
  lines.sort((one, other) => one[1].top - other[1].top);
  lines.forEach(([name, a], at) => {
    for (let next = at + 1; next < lines.length && lines[next][1].top < a.bottom; next++) {
      const [other, b] = lines[next];
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (wide > 1 && high > 0.4 * Math.min(a.height, b.height)) found.overprinted.push([name, other]);
    }
  });
  return found;
};
const folded = measure();
document.querySelectorAll('details').forEach(d => { d.open = true; });
const unfolded = measure();
const unguided = [...document.querySelectorAll('.finding')]
  .filter(f => !/^Next:\\s*\\S/.test((f.querySelector('.next') || f).textContent)).map(f => f.textContent);
const findings = document.querySelectorAll('.finding').length;
const result = document.createElement('script');
result.type = 'application/json';
result.id = 'measured';
const all = {width: innerWidth, folded, unfolded, unguided, findings};
result.textContent = JSON.stringify(all).replace(/</g, '\\\\u003c');
parent.document.body.append(result);
"""
"""Runs in a copy of the report: its boxes as laid out, first as it opens and then with everything unfolded."""

Measured = dict[str, Any]


@pytest.fixture(scope="module")
def browser() -> str:
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None and os.environ.get("SEATRIAL_LABS") == "required":
        pytest.fail(HINT)
    if found is None:
        pytest.skip(f"left out: {HINT}")
    return found


def measured(browser: str, source: str, width: int, folder: Path) -> Measured:
    """What the browser lays out of a page that is so wide: in a frame, because windows have a least width."""
    page = folder / "page.html"
    framed = f'<iframe srcdoc="{escape(_with_script(source))}" style="width: {width}px; height: 900px; border: 0">'
    page.write_text(f"<!doctype html><body>{framed}</iframe></body>", encoding="utf-8")
    own = [f"--user-data-dir={folder / 'profile'}", "--window-size=1400,1000", "--dump-dom", page.as_uri()]
    done = subprocess.run([browser, *FLAGS, *own], check=True, capture_output=True, text=True, timeout=120)
    found = re.search(r'id="measured">(.*?)</script>', done.stdout, re.DOTALL)
    assert found is not None, f"the browser measured nothing: {done.stderr[-2000:]}"
    result: Measured = json.loads(found[1])
    assert result["width"] == width
    return result


def _with_script(source: str) -> str:
    """The page with the measuring script, which the page's own policy would forbid."""
    return re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", source) + f"<script>{MEASURE}</script>"


NAMED = ("accepted", "rejected", "unfinished", "hostile", "large")
BETWEEN = (320, 701, 900)
"""Widths near those at which the layout changes."""


@pytest.mark.parametrize(
    ("name", "width"),
    [*((name, width) for name in NAMED for width in (1280, 400)), *(("rejected", width) for width in BETWEEN)],
)
def test_nothing_overlaps_and_nothing_sticks_out(browser: str, name: str, width: int, tmp_path: Path) -> None:
    record = getattr(samples, name)(tmp_path / "record.jsonl")
    html.write(record, tmp_path / "report.html")
    result = measured(browser, (tmp_path / "report.html").read_text("utf-8"), width, tmp_path)
    for state in (result["folded"], result["unfolded"]):
        assert state["overflow"] <= 0
        assert state["drawn"] > 0
        assert state["texts"] > 100
        for fault in ("collisions", "outside", "unitless", "overprinted"):
            assert state[fault] == [], fault
    assert result["unguided"] == []
    assert (result["findings"] > 0) == (name not in ("accepted", "unfinished"))


PLOT = '<svg viewBox="0 0 100 50" width="100" height="50">{}</svg>'
AXES = '<text class="axis" x="0" y="10" font-size="6">rank (number)</text>'
AXES += '<text class="axis" x="0" y="48" font-size="6">t (s)</text>'
FAULTS = {
    "overflow": '<div style="width: 2000px">wide</div>',
    "collisions": PLOT.format(f'{AXES}<text x="10" y="30">one</text><text x="14" y="32">two</text>'),
    "outside": PLOT.format(f'{AXES}<text x="90" y="30">beyond</text>'),
    "unitless": PLOT.format('<text class="axis" x="0" y="10" font-size="6">rank</text>'),
    "overprinted": '<p>one line</p><p style="margin-top: -34px">another line</p>',
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_measuring_sees_a_planted_fault(browser: str, fault: str, tmp_path: Path) -> None:
    clean = measured(browser, f"<!doctype html><body>{PLOT.format(AXES)}<p>text</p></body>", 800, tmp_path)
    seen = measured(browser, f"<!doctype html><body>{FAULTS[fault]}</body>", 800, tmp_path)
    for other in FAULTS:
        assert clean["folded"][other] in ([], 0), other
        assert (seen["folded"][other] in ([], 0)) == (other != fault), other


def test_the_measuring_sees_a_finding_without_a_next_step(browser: str, tmp_path: Path) -> None:
    page = '<!doctype html><body><article class="finding">a<p class="next"><b>Next:</b> </p></article></body>'
    assert measured(browser, page, 800, tmp_path)["unguided"] == ["aNext: "]


def test_a_fault_that_is_folded_away_is_seen(browser: str, tmp_path: Path) -> None:
    page = f"<!doctype html><body><details><summary>more</summary>{FAULTS['overflow']}</details></body>"
    result = measured(browser, page, 800, tmp_path)
    assert result["folded"]["overflow"] <= 0
    assert result["unfolded"]["overflow"] > 0
