"""What the first screen of a sick fleet tells: measured in the browser, at both widths, and in a terminal of 80 columns."""

from __future__ import annotations

from dataclasses import replace

import pytest
from playwright.sync_api import Browser
from rich.console import Console

from kcl_daemon.admin.site import StatusDocument
from kcl_daemon.cli.status_view import build_view, renderable
from tests.page.looking import Looked, looking
from tests.page.pictures import SIZES
from tests.page.sick import CAUSE, READY, SICK, deleted, paused
from tests.unit.admin.serving import serving
from tests.unit.admin.stage import Standing

pytestmark = pytest.mark.timeout(300)

TEXT_ON_SCREEN = """([width, height]) => {
  const seen = [];
  const walk = document.createTreeWalker(document.getElementById('main'), NodeFilter.SHOW_TEXT);
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    const range = document.createRange();
    range.selectNodeContents(node);
    const box = range.getBoundingClientRect();
    if (box.width && box.left >= 0 && box.right <= width && box.bottom <= height) seen.push(node.data);
  }
  return seen.join(' | ');
}"""


def on_first_screen(checked: Looked, width: int) -> str:
    checked.page.wait_for_selector("#shards", state="visible")
    seen: str = checked.page.evaluate(TEXT_ON_SCREEN, [width, SIZES[width]])
    return seen


@pytest.mark.parametrize("width", SIZES)
@pytest.mark.parametrize("name", SICK)
def test_the_cause_is_on_the_first_screen_and_nothing_beside_it_says_that_all_is_well(
    browser: Browser, name: str, width: int
) -> None:
    with (
        serving(Standing(SICK[name]())) as made,
        looking(browser, made.url, width=width, height=SIZES[width]) as checked,
    ):
        seen = on_first_screen(checked, width)
        assert CAUSE[name] in seen
        assert "at the tip" not in checked.text("#main")
        assert ("This worker is running" in seen) is (name in READY)
        assert ("not ready" in seen) is (name not in READY)
        heading = checked.page.locator("#shards thead th", has_text="Waits for")
        box = heading.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= width
        assert box["y"] + box["height"] <= SIZES[width]
        checked.assert_quiet()


@pytest.mark.parametrize("width", SIZES)
@pytest.mark.parametrize("name", SICK)
def test_the_wait_of_a_shard_is_the_widest_column_and_no_other_pushes_it_off(
    browser: Browser, name: str, width: int
) -> None:
    with (
        serving(Standing(SICK[name]())) as made,
        looking(browser, made.url, width=width, height=SIZES[width]) as checked,
    ):
        checked.page.wait_for_selector("#shards", state="visible")
        table = checked.page.locator("#shards .scroll")
        assert table.evaluate("it => it.scrollWidth - it.clientWidth") == 0
        widths = dict(
            table.evaluate(
                "it => [...it.querySelectorAll('thead th')].map(h => [h.innerText, h.offsetWidth])"
            )
        )
        assert widths["Waits for"] == max(widths.values())
        first = checked.page.locator("#shards tbody tr").first.locator("td.why")
        assert first.is_visible(), "the shard that needs attention stands first, and says why"


@pytest.mark.parametrize("width", SIZES)
def test_sixty_four_shards_with_one_cause_are_one_line(browser: Browser, width: int) -> None:
    with (
        serving(Standing(deleted())) as made,
        looking(browser, made.url, width=width, height=SIZES[width]) as checked,
    ):
        assert checked.page.locator("#trouble li").count() == 1
        assert checked.page.locator("#attention").count() == 0
        assert "59 more make no progress" in on_first_screen(checked, width)


@pytest.mark.parametrize("width", SIZES)
def test_a_pause_has_a_tile_and_its_shard_is_the_first_row(browser: Browser, width: int) -> None:
    with (
        serving(Standing(paused())) as made,
        looking(browser, made.url, width=width, height=SIZES[width]) as checked,
    ):
        tiles = checked.page.locator(".headline div")
        told = dict(each.split("\n", 1) for each in tiles.all_inner_texts())
        assert (told["Unread"], told["Paused"]) == ("1", "1")
        assert next(iter(checked.rows("shards"))) == "shardId-000000000005"


def test_a_worker_that_holds_none_of_its_leases_says_both_numbers_wherever_it_says_one(
    browser: Browser,
) -> None:
    with serving(Standing(SICK["changing"]())) as made, looking(browser, made.url) as checked:
        assert "holds 0 of its 8 shards" in checked.text("#summary")
        assert "This worker\n0 of its 8" in checked.page.locator("#fleet dl div").all_inner_texts()


def test_capacity_is_told_once(browser: Browser) -> None:
    sick = deleted()
    assert sick.capacity is not None
    late = replace(sick.capacity, reason="it keeps up", sentence="at the tip; 1 worker is enough")
    for told in (sick, replace(sick, capacity=late)):
        with serving(Standing(told)) as made, looking(browser, made.url) as checked:
            said = checked.page.locator("#fleet dl div", has_text="Capacity").all_inner_texts()
            assert [each.count("worker") + each.count("AWS refuses") for each in said] == [1]


@pytest.mark.parametrize("name", SICK)
def test_a_terminal_of_eighty_columns_tells_the_cause_and_names_the_first_shard(name: str) -> None:
    console = Console(width=80, height=24, record=True, force_terminal=False)
    shown = build_view(StatusDocument(1, SICK[name]()), max_lines=24, width=80)
    with console.capture() as captured:
        console.print(renderable(shown, width=80))
    lines = captured.get().splitlines()
    assert CAUSE[name] in " ".join(" ".join(lines[:8]).split())
    (heading,) = (line for line in lines if "waits for" in line)
    assert heading.split()[:2] == ["shard", "state"]
    columns = [each.strip() for each in heading.split("  ") if each.strip()]
    assert columns[-1] == "waits for"
