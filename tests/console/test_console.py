"""The console in a real browser, against the real server."""

import contextlib
import shutil
import socket
import tempfile
from pathlib import Path

import pytest
from server_command import RunningServer, configured_server, running_server

from omq import blocking
from omq.model import Delivery, FromBeginning, Transient
from omq_storage.backup import backup
from omq_storage.store import Store

selenium = pytest.importorskip("selenium", reason="selenium is not installed")
if not (shutil.which("chromium") and shutil.which("chromedriver")):
    pytest.skip("chromium or chromium-driver is not installed", allow_module_level=True)

from pages import ATTACK, Page, origin, publish, tailing  # noqa: E402 - it imports selenium

# -- topics -------------------------------------------------------------------------------------------------


def test_an_empty_server_greets_with_three_commands(page: Page, tmp_path: Path) -> None:
    with running_server("--listen", "127.0.0.1:0", "--store", tmp_path / "store") as running:
        page.open(origin(running))
        page.sees("h1", "This server has no topics yet")
        assert [each.split()[:2] for each in page.texts(".command code")] == [
            ["omq", "sub"],
            ["omq", "pub"],
            ["omq", "topics"],
        ]
        assert all(running.address in each for each in page.texts(".command code"))
        scrolls = "(each) => each.scrollWidth > each.clientWidth"
        assert not page.script(f"return [...document.querySelectorAll('.command code')].some({scrolls})")
        with blocking.connect(f"omq://{running.address}") as client:
            publish(client, "weather", "sunny")
        page.sees(".rows .col-name", "weather")
        page.leave()


def test_a_topic_is_declared_used_and_deleted(
    page: Page, client: blocking.Client, server: RunningServer
) -> None:
    publish(client, "other", "1")
    page.open(origin(server))
    page.click("button", "Declare a topic")
    page.type("dialog input[name=topic]", "my prices")
    page.script("document.querySelector('dialog select[name=persistence]').value = 'Strong'")
    page.click("dialog button.primary")
    page.sees(".topic-page h1", "my prices")
    page.sees(".badge", "Broadcast, strong")

    page.click("[role=tab]", "Publish")
    page.type("textarea", "ACME 101.5")
    page.click(".publish button.primary")
    page.sees(".publish .counts", "Confirmed")
    (info,) = (each for each in client.topics() if each.topic == b"my prices")
    assert info.last == 1

    page.click("#delete")
    page.sees("dialog p", "This cannot be undone")
    page.click("dialog button", "Cancel")
    page.until(lambda: not page.all("dialog"), "the dialog stays open")
    assert any(each.topic == b"my prices" for each in client.topics())
    page.click("#delete")
    page.click("dialog [data-confirm]")
    page.sees(".toast", "Deleted my prices")
    page.until(lambda: "my prices" not in page.texts(".rows .col-name"), "the topic stays in the table")
    assert all(each.topic != b"my prices" for each in client.topics())


def test_a_refusal_is_told(page: Page, server: RunningServer) -> None:
    page.open(origin(server), "#/topics/none")
    page.sees(".notice h1", "There is no such topic")
    page.click(".notice button", "Declare it")
    page.script("document.querySelector('dialog input[name=topic]').value = 'x'.repeat(256)")
    page.click("dialog button.primary")
    page.sees("dialog .toast.bad", "octets, more than 255")
    page.click("dialog button", "Cancel")
    page.open(origin(server), "#/topics/" + "x" * 256)  # a name that no topic can have
    page.sees(".notice h1", "There is no such topic")


def test_10000_topics_can_be_used(page: Page, tmp_path: Path) -> None:
    # Each topic is a transaction: in memory, that is quick.
    folder = Path("/dev/shm") if Path("/dev/shm").is_dir() else tmp_path
    path = Path(tempfile.mkdtemp(dir=folder))
    try:
        with Store.open(path) as store:
            for number in reversed(range(10_000)):
                store.catalogue.create(
                    b"topic.%d" % number, "Broadcast", "Transient", declared=True, reserved=1
                )
        with running_server("--listen", "127.0.0.1:0", "--store", path) as running:
            page.open(origin(running))
            page.sees(".title .counts", "10,000 ")
            assert len(page.all(".rows .row")) < 60
            # It is sorted by rate, and topics with equal rates by name.
            assert page.texts(".rows .col-name")[:2] == ["topic.0", "topic.1"]
            page.click(".col-name .sort")
            page.click(".col-name .sort")
            page.until(lambda: page.texts(".rows .col-name")[0] == "topic.9999", "it is not sorted by name")
            page.click(".col-name .sort")
            page.until(lambda: page.texts(".rows .col-name")[0] == "topic.0", "it is not sorted by name")
            page.script("document.querySelector('.scroller').scrollTop = 1e9")
            page.until(lambda: "topic.9999" in page.texts(".rows .col-name"), "the last topic is not shown")
            assert len(page.all(".rows .row")) < 60
            page.type("input[type=search]", "c.77")
            page.sees(".title .counts", "111 of 10,000")
            # By keyboard: to the second topic that matches, and into it.
            page.type("[role=grid]", "\ue011\ue015")  # Home, arrow down
            active = page.script("return document.activeElement.getAttribute('aria-activedescendant')")
            assert page.texts(f"#{active} .col-name") == ["topic.770"]
            assert page.script("return document.querySelector('.rows a').tabIndex") == -1
            page.type("[role=grid]", "\ue007")  # Enter
            page.sees(".topic-page h1", "topic.770")
            page.until(lambda: page.driver.title == "topic.770 · omq", f"the title is {page.driver.title}")
            page.script("document.querySelector('.skip').click()")
            assert page.script("return document.activeElement.id") == "main"
            page.click("#delete")
            page.driver.back()
            page.sees("main h1", "Topics")
            assert not page.all("dialog")  # it asked about the topic
            page.leave()
    finally:
        shutil.rmtree(path)


# -- one topic ----------------------------------------------------------------------------------------------


def test_the_tail_shows_published_messages(
    page: Page, client: blocking.Client, server: RunningServer
) -> None:
    client.declare("tail")
    page.open(origin(server), "#/topics/tail")
    tailing(page, client, "tail")
    publish(client, "tail", "one", '{"price": 2}')
    page.sees("#tail-counts", "2 received")
    assert page.texts(".messages .body") == ['{"price": 2}', "one"]

    page.click(".message summary", "price")  # the message is shown in full, and the tail is paused
    page.sees(".message .details dl", "stored")
    page.sees(".message .details dl", "received")
    assert page.texts(".message pre") == ['{"price": 2}']
    page.script(
        "const form = document.querySelector('.tail select');"
        "form.value = 'json'; form.dispatchEvent(new Event('change'))"
    )
    page.until(lambda: page.texts(".message pre") == ['{\n  "price": 2\n}'], "it is not shown as JSON")
    page.script(
        "const form = document.querySelector('.tail select');"
        "form.value = 'hex'; form.dispatchEvent(new Event('change'))"
    )
    page.sees(".message pre", "00000000  7b 22 70")
    publish(client, "tail", "while paused")
    page.sees("#tail-counts", "1 not drawn · paused")
    page.click(".tail button", "Continue")
    page.type(".tail input[type=search]", "MATCH")
    publish(client, "tail", "no", "a match", "no")
    page.sees("#tail-counts", "6 received")
    page.until(lambda: len(page.all(".messages .body")) == 3, "the filter does not work")
    assert "while paused" not in page.texts(".messages .body")


def test_10000_messages_a_second_are_drawn_in_part_and_counted(
    page: Page, client: blocking.Client, server: RunningServer
) -> None:
    client.declare("fast")
    page.open(origin(server), "#/topics/fast")
    tailing(page, client, "fast")
    # Count the rows that are added in one frame, and the rows that there are, at most.
    page.script(
        """
        window.most = { added: 0, kept: 0 };
        let added = 0;
        const rows = document.querySelector(".messages");
        new MutationObserver((changes) => {
            for (const change of changes) added += change.addedNodes.length;
            most.kept = Math.max(most.kept, rows.childElementCount);
        }).observe(rows, { childList: true });
        (function frame() {
            most.added = Math.max(most.added, added);
            added = 0;
            requestAnimationFrame(frame);
        })();
        """
    )
    for turn in range(20):
        publish(client, "fast", *(f"message {turn} {number}" for number in range(1000)))
        if turn == 10:  # the page answers in the middle of it
            page.click(".tail button", "Pause")
            page.click(".tail button", "Continue")
    page.sees("#tail-counts", "20,000 received")
    assert "not drawn" in page.texts("#tail-counts")[0]
    # A burst fills the buffer of the subscription, which skips messages. They were received, too.
    publish(client, "fast", *(f"burst {number}" for number in range(20_000)))
    page.sees("#tail-counts", "40,000 received")
    most = page.script("return window.most")
    assert 0 < most["added"] <= 25
    assert most["kept"] <= 200


def test_the_tail_can_be_left_and_chosen_again_at_once(
    page: Page, client: blocking.Client, server: RunningServer
) -> None:
    client.declare("again")
    page.open(origin(server), "#/topics/again")
    tailing(page, client, "again")
    page.script(
        "for (const tab of ['live', 'publish', 'live', 'publish', 'live', 'live'])"
        "    document.getElementById(`tab-${tab}`).click()"
    )
    page.until(
        lambda: (publish(client, "again", "more"), "more" in page.texts(".messages .body"))[1],
        f"nothing is shown, but: {page.texts('.tail .empty')}",
    )


def test_stored_messages_are_found_by_id_and_by_time(
    page: Page, client: blocking.Client, server: RunningServer
) -> None:
    publish(client, "stored", *(f"body {number}" for number in range(1, 1501)))
    page.open(origin(server), "#/topics/stored")
    page.click("[role=tab]", "Stored messages")
    page.sees(".browse .counts", "Messages 1451 to 1500, the newest is 1500")
    page.click(".browse button", "Earlier")
    page.sees(".browse .counts", "Messages 1401 to 1450")
    page.type(".browse input[inputmode=numeric]", "700\ue007")
    page.sees(".browse .counts", "Messages 700 to 749")
    assert page.texts(".messages .body")[0] == "body 700"
    page.script(
        "const time = document.querySelector('.browse input[type=datetime-local]');"
        "time.value = '2020-01-01T00:00:00'; time.form.requestSubmit()"
    )
    page.sees(".browse .counts", "Messages 1 to 50")
    page.script(
        "const time = document.querySelector('.browse input[type=datetime-local]');"
        "time.value = '2120-01-01T00:00:00'; time.form.requestSubmit()"
    )
    page.sees(".browse .counts", "No message since 2120-01-01")


def test_a_page_of_long_messages_is_bounded(
    page: Page, client: blocking.Client, server: RunningServer
) -> None:
    for _ in range(30):
        publish(client, "long", "x" * 500_000)
    page.open(origin(server), "#/topics/long")
    page.click("[role=tab]", "Stored messages")
    page.sees(".browse .counts", "Messages 15 to 30, the newest is 30")
    page.click(".browse button", "Oldest")
    page.sees(".browse .counts", "Messages 1 to 20, the newest is 30")
    page.sees(".browse .empty", "These messages are long")
    page.click(".message summary")
    page.sees(".message .details p", "The first 262,144 of 500,000 octets")
    page.click(".browse button", "Later")
    page.sees(".browse .counts", "Messages 21 to 30")


def test_stored_messages_are_found_beyond_the_ids_that_a_backup_skips(page: Page, tmp_path: Path) -> None:
    path = tmp_path / "store"
    with (
        running_server("--listen", "127.0.0.1:0", "--store", path) as running,
        blocking.connect(f"omq://{running.address}") as client,
    ):
        publish(client, "restored", *(f"old {number}" for number in range(1, 81)))
    backup(path, tmp_path / "backup", "a start of the machine", lambda _: None)
    with running_server("--listen", "127.0.0.1:0", "--store", tmp_path / "backup") as running:
        with blocking.connect(f"omq://{running.address}") as client:
            publish(client, "restored", *(f"new {number}" for number in range(1, 11)))
            newest = client.topics()[0].last
        page.open(origin(running), "#/topics/restored")
        page.click("[role=tab]", "Stored messages")
        page.sees(".browse .counts", f"Messages 41 to {newest}, the newest is {newest}")
        bodies = [f"old {number}" for number in range(41, 81)] + [f"new {number}" for number in range(1, 11)]
        assert page.texts(".messages .body") == bodies
        page.sees(".browse .empty", f"Messages 81 to {newest - 10} are gone: they were lost")
        page.click(".browse button", "Earlier")
        page.sees(".browse .counts", "Messages 1 to 50,")
        page.click(".browse button", "Later")
        page.sees(".browse .counts", f"Messages 51 to {newest},")
        page.click(".browse button", "Later")  # there is none
        page.sees(".browse .counts", f"Messages 51 to {newest},")
        page.type(".browse input[inputmode=numeric]", "1000\ue007")
        page.sees(".browse .counts", f"Messages {newest - 9} to {newest},")
        page.leave()


def test_json_is_shown_with_its_numbers_and_keys_as_they_are(
    page: Page, client: blocking.Client, server: RunningServer
) -> None:
    publish(client, "exact", r'{"id":9007199254740993,"price":1.10,"2":[],"1":["\u00e9, {"]}')
    page.open(origin(server), "#/topics/exact")
    page.click("[role=tab]", "Stored messages")
    page.click(".message summary")
    page.script(
        "const form = document.querySelector('.browse select');"
        "form.value = 'json'; form.dispatchEvent(new Event('change'))"
    )
    page.sees(".messages .body", '{"id":9007199254740993,"price":1.10,"2":[],"1":["é, {"]}')
    indented = '{\n  "id": 9007199254740993,\n  "price": 1.10,\n  "2": [],\n  "1": [\n    "é, {"\n  ]\n}'
    page.sees(".message pre", indented)


def test_messages_of_a_queue_are_shown_and_stay_in_it(
    page: Page, client: blocking.Client, server: RunningServer
) -> None:
    page.open(origin(server))
    page.script(
        """
        window.done = import("/client/omq.js").then(async ({ connect }) => {
            const client = await connect(`ws://${location.host}/ws`);
            await client.declare("jobs", { delivery: "Round_robin" });
            await client.close();
            location.hash = "#/topics/jobs";
        });
        """
    )
    page.sees(".badge", "Queue")
    publish(client, "jobs", "job 1", "job 2")
    page.click(".browse button", "Oldest")
    page.sees(".messages", "job 2")
    assert page.texts("[role=tab]")[0] == "Stored messages"  # a live view would take the messages
    assert next(each for each in client.topics() if each.topic == b"jobs").messages == 2


def test_a_queue_whose_first_messages_are_done_is_shown_page_by_page(
    page: Page, client: blocking.Client, server: RunningServer
) -> None:
    client.declare("partly done", Delivery.ROUND_ROBIN)
    publish(client, "partly done", *(f"job {number}" for number in range(1, 521)))
    with client.subscribe("partly done", credit=420) as worker:
        for message in worker:
            if message.id == 400:  # it stays in the queue
                break
    page.open(origin(server), "#/topics/partly%20done")
    page.sees(".browse .counts", "Messages 400 to 449, the newest is 520")
    page.click(".browse button", "Later")
    page.sees(".browse .counts", "Messages 450 to 499,")
    page.click(".browse button", "Later")
    page.sees(".browse .counts", "Messages 500 to 520,")
    page.click(".browse button", "Later")  # there is none
    page.click(".browse button", "Earlier")
    page.sees(".browse .counts", "Messages 450 to 499,")
    page.click(".browse button", "Newest")
    page.sees(".browse .counts", "Messages 471 to 520,")


def test_a_page_of_long_messages_of_a_queue_takes_several_answers(
    page: Page, client: blocking.Client, server: RunningServer
) -> None:
    client.declare("heavy", Delivery.ROUND_ROBIN)
    publish(client, "heavy", *(f"job {number} {'x' * 6000}" for number in range(1, 61)))
    page.open(origin(server), "#/topics/heavy")
    page.click(".browse button", "Oldest")
    page.sees(".browse .counts", "Messages 1 to 50, the newest is 60")
    page.click(".browse button", "Newest")
    page.sees(".browse .counts", "Messages 11 to 60,")
    client.delete("heavy")


def test_a_message_of_a_queue_that_is_too_long_to_be_shown_is_told(
    page: Page, client: blocking.Client, server: RunningServer
) -> None:
    client.declare("long jobs", Delivery.ROUND_ROBIN)
    with client.sink("long jobs") as sink:
        sink.publish(b"x" * 10_000_000)
    page.open(origin(server), "#/topics/long%20jobs")
    page.sees(".browse .empty", "Messages of more than a few MiB are not shown.")
    publish(client, "long jobs", "short")
    page.sees(".figures", "Messages2")
    page.click(".browse button", "Oldest")
    page.sees(".messages .body", "short")
    page.sees(".browse .empty", "Messages of more than a few MiB are not shown.")
    client.delete("long jobs")


def test_half_of_a_character_is_published_as_a_replacement(
    page: Page, client: blocking.Client, server: RunningServer
) -> None:
    client.declare("halves")
    page.open(origin(server), "#/topics/halves")
    page.click("[role=tab]", "Publish")
    page.until(lambda: page.all("textarea"), "there is no text area")
    page.script("document.querySelector('textarea').value = '\\ud83d half'")
    page.click(".publish button.primary")
    page.sees(".publish .counts", "Confirmed")
    message = client.subscribe("halves", FromBeginning()).receive(timeout=60)
    assert message is not None
    assert message.body == "\ufffd half".encode()


def test_a_publish_that_waits_stops_no_other_view(page: Page, tmp_path: Path) -> None:
    with configured_server(tmp_path, f"memory_bytes = {4 * 2**20}\n") as running:
        with blocking.connect(f"omq://{running.address}") as client:
            client.declare("full", Delivery.ROUND_ROBIN, Transient())
        host, _, port = running.address.rpartition(":")
        with socket.create_connection((host, int(port))) as filler:
            filler.settimeout(2)
            filler.sendall((1).to_bytes(8) + b"(Connect 1 filler)\n")
            with contextlib.suppress(TimeoutError):
                for _ in range(1000):
                    filler.sendall(b"(Publish full %s)\n" % (b"x" * 50_000))
            page.open(origin(running), "#/topics/full")
            page.sees(".figures", "Publishers waiting")
            page.click("[role=tab]", "Publish")
            page.type("textarea", "one more")
            page.click(".publish button.primary")
            page.sees(".publish .counts", "Waiting")
            page.click("[role=tab]", "Subscribers")
            page.sees(".tab-panel .empty", "Nobody is subscribed")
            page.leave()


# -- attacks ------------------------------------------------------------------------------------------------


def test_names_and_bodies_from_the_network_stay_text(
    page: Page, client: blocking.Client, server: RunningServer
) -> None:
    publish(client, ATTACK, "first")
    page.open(origin(server))
    page.sees(".rows .col-name", ATTACK)
    page.click(".rows .col-name a", ATTACK)
    page.sees(".topic-page h1", ATTACK)
    tailing(page, client, ATTACK)
    publish(client, ATTACK, ATTACK)
    page.sees(".messages .body", ATTACK)
    page.click(".message summary")
    page.sees(".message pre", ATTACK)
    page.click("#delete")
    page.sees("dialog h2", ATTACK)
    page.click("dialog button", "Cancel")
    assert page.all("main img, main script, dialog img, dialog script") == []
    assert "attacked" not in page.driver.title.split(ATTACK)[0]


def test_a_page_loads_nothing_from_elsewhere(page: Page, server: RunningServer) -> None:
    page.open(origin(server))
    page.sees("#link", "Connected")
    loaded = page.script("return performance.getEntriesByType('resource').map((each) => each.name)")
    assert len(loaded) > 10
    assert [each for each in loaded if not each.startswith(page.origin)] == []


# -- the other views -----------------------------------------------------------------------------------------


def test_an_unknown_page_shows_the_topics(page: Page, server: RunningServer) -> None:
    page.open(origin(server), "#/nowhere")
    page.sees("h1", "opic")
    assert page.texts("nav [aria-current=page]") == ["Topics"]


def test_a_topic_shows_its_subscribers_and_keeps_less(
    page: Page, client: blocking.Client, server: RunningServer
) -> None:
    publish(client, "kept", "1", "2")
    with blocking.connect(f"omq://{server.address}", id="reader") as other, other.subscribe("kept"):
        page.open(origin(server), "#/topics/kept")
        page.click("[role=tab]", "Subscribers")
        page.sees(".tab-panel tbody", "reader")
    page.click("button", "Retention")
    page.type("dialog input[name=hours]", "36")
    page.click("dialog button.primary")
    page.sees(".figures", "1 d 12 h")
    page.click("button", "Purge")
    page.click("dialog [data-confirm]")
    page.sees(".toast", "Deleted 2 messages")
    page.until(lambda: not client.blocks("kept"), "its messages are still there")
    page.sees(".figures", "none, the next is 3")


@pytest.mark.parametrize("button", ["Retention", "Purge", "Delete"])
@pytest.mark.parametrize("again", [False, True], ids=["deleted", "replaced"])
def test_a_dialog_closes_with_its_topic(
    page: Page, client: blocking.Client, server: RunningServer, button: str, again: bool
) -> None:
    publish(client, "passing", "1")
    page.open(origin(server), "#/topics/passing")
    page.click("button", button)
    page.sees("dialog h2", "passing")
    client.delete("passing")
    if again:
        publish(client, "passing", "2")
    page.until(lambda: not page.all("dialog"), "the dialog stays")
    page.sees(".figures" if again else "h1", "1 – 1" if again else "There is no such topic")


def test_the_server_shows_its_numbers(page: Page, client: blocking.Client, server: RunningServer) -> None:
    publish(client, "other", "1")
    page.open(origin(server), "#/server")
    page.sees(".figures", "Connections")
    assert len(page.texts(".share meter")) > 5
    described = page.texts(".share small")
    assert len(described) == len(page.texts(".share meter"))
    assert all(described), described
    assert [each.partition(" ")[0] for each in page.texts("tbody th")] == ["strong", "weak", "async"]
    page.sees("[aria-label=Disk]", "GiB")
    page.driver.set_window_size(1200, 800)
    try:  # a screen of this width shows all columns of the commits
        page.until(lambda: page.all("[aria-label=Commits] svg path"), "no chart")
        hidden = (
            "const each = document.querySelector('.cards .wide'); return each.scrollWidth - each.clientWidth"
        )
        assert page.script(hidden) <= 0
    finally:
        page.driver.set_window_size(1400, 900)


def test_a_full_disk_leaves_the_columns_of_the_commits_in_sight(browser: Page, tmp_path: Path) -> None:
    page = browser
    with configured_server(tmp_path, f"disk_reserve_bytes = {1 << 52}") as running:
        page.open(origin(running), "#/server")
        page.sees("[aria-label=Disk]", "The disk is full")
        page.sees("[aria-label=Commits] tbody th", "kept in reserve")
        beyond = (
            "const each = document.querySelector('.cards .wide'); return each.scrollWidth - each.clientWidth"
        )
        assert page.script(beyond) <= 0
        page.leave()
    assert all("/readyz" in error for error in page.errors())  # it answers 503


# -- the client ---------------------------------------------------------------------------------------------


def test_the_client_works_in_a_browser(page: Page, server: RunningServer) -> None:
    page.open(origin(server))
    found = page.driver.execute_async_script(
        """
        const done = arguments[0];
        import("/client/omq.js").then(async ({ connect }) => {
            const client = await connect(`ws://${location.host}/ws`, { id: "a page" });
            await client.declare("page");
            const subscription = await client.subscribe("page", { buffer: 50 });
            for (let at = 0; at < 2000; at++) await client.publish("page", `${at}`);
            const confirmed = client.confirm();
            let next = 0;
            for await (const message of subscription) {
                if (message.text !== `${next}`) throw new Error(message.text);
                if (++next === 2000) break;
            }
            await confirmed;
            let stored = 0;
            for await (const message of client.fetch("page")) stored++;
            const [block] = await client.blocks("page", 1n);
            const since = await client.firstSince("page", new Date(block.time / 1000));
            await client.close();
            return [next, stored, since === 1n];
        }).then(done, (error) => done(String(error)));
        """
    )
    assert found == [2000, 2000, True]
