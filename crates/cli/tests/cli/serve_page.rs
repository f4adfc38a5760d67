//! The page of `lockstep serve` in a real browser, over real servers.
//!
//! `LOCKSTEP_PICTURES=FOLDER` writes pictures of it there.

use lockstep_lab::assert_has;
use lockstep_lab::for_tests::TestLab;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::browser::Browser;
use crate::doctor_support::SPACE_MB;
use crate::serve_support::{Serve, until};
use lockstep_bench::fault::{Fault, Stage, Strength};
use lockstep_lab::cluster::Lab;

/// What a replica may call itself.
const HOSTILE_NAME: &str = "<img src=x onerror=document.title=1>";

/// What a query may contain.
const HOSTILE_QUERY: &str = "SELECT '</pre><img src=x onerror=\"document.title=1\">'";

/// A replica that was not named, and has a hostile name.
struct Receiver(Child);

impl Receiver {
    fn start(lab: &Lab, stage: &Stage) -> Self {
        let folder = lab.folder().join("received");
        std::fs::create_dir(&folder).unwrap();
        let [primary, ..] = stage.conninfos();
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(lab.package().program("pg_receivewal"))
            .arg("--no-loop")
            .arg("-D")
            .arg(folder)
            .args([
                "-d",
                &format!("{primary} application_name='{HOSTILE_NAME}'"),
            ])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Where pictures are wanted.
pub fn pictures() -> Option<PathBuf> {
    let folder = std::env::var_os("LOCKSTEP_PICTURES")?;
    (!folder.is_empty()).then(|| folder.into())
}

/// Pictures at the widths of a phone, a desk and a wide screen, light and dark.
fn take_pictures(browser: &Browser, name: &str) {
    let Some(folder) = pictures() else {
        return;
    };
    for (size, width, height, mobile) in [
        ("phone", 360, 740, true),
        ("desk", 1280, 900, false),
        ("wide", 1920, 1080, false),
    ] {
        for scheme in ["light", "dark"] {
            browser.resize(width, height, mobile);
            browser.prefer("prefers-color-scheme", scheme);
            browser.run("return new Promise((done) => setTimeout(done, 1500))");
            browser.picture(&folder.join(format!("{name}-{size}-{scheme}.png")));
        }
    }
}

const VERDICT: &str = "return document.getElementById('words').textContent";

fn verdict_with(browser: &Browser, words: &str) -> String {
    let mut last = String::new();
    until(words, || {
        let verdict = browser.text(VERDICT);
        if verdict != last {
            println!("verdict: {verdict}");
            last.clone_from(&verdict);
        }
        verdict.contains(words).then_some(verdict)
    })
}

#[test]
fn the_page_says_what_is_the_matter() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let lab = TestLab::stock()
        .pinned()
        .space_mb(SPACE_MB)
        .start()
        .unwrap();
    let mut stage = Stage::start(&lab).unwrap();
    let _receiver = Receiver::start(&lab, &stage);
    let [primary, standby, first, second] = stage.conninfos();
    let nowhere = format!("host={} port=1", lab.folder().display());
    let kept = lab.folder().join("kept").display().to_string();
    let watched = [
        "--history",
        kept.as_str(),
        "--primary",
        primary.as_str(),
        "--standby",
        standby.as_str(),
        "--subscriber",
        first.as_str(),
        "--subscriber",
        second.as_str(),
        "--standby",
        nowhere.as_str(),
        "--window",
        "5",
        "--wal-disk",
        "primary=1TB",
    ];
    let mut serve = Serve::start(&watched);
    browser.open(&format!("http://{}/", serve.address));
    verdict_with(&browser, "standby2 cannot be asked");
    lag_is_named(&browser, &lab, &mut stage);
    names_are_text(&browser, &lab, &mut stage);
    assert_eq!(browser.complaints(), Vec::<String>::new());
    keyboard_reaches_everything(&browser);
    time_shown_can_be_chosen(&browser);
    fits_a_phone(&browser);
    take_pictures(&browser, "healthy");
    loss_is_said(&browser, &mut serve);
    news_come_again(&browser, &watched, &serve.address);
}

/// A lag appears, with its cause, remedy and a chart, and goes again.
fn lag_is_named(browser: &Browser, lab: &Lab, stage: &mut Stage) {
    let fault = Fault::named("paused replay").unwrap();
    let injected = fault.inject(lab, stage, Strength::Strong).unwrap();
    let words = verdict_with(browser, "replay is paused");
    assert_has!(words, "replicas lag", "standby ");
    let title = browser.text("return document.title");
    assert!(title.contains("standby — replay is paused"), "{title}");
    let cause = browser.text("return document.querySelector('#cause-list > li').textContent");
    for part in ["standby: replay is paused", "Do: ", "pg_wal_replay_resume"] {
        assert!(cause.contains(part), "{cause}");
    }
    // The chart of that replica, and no other, shows bytes that wait for replay. It begins anew after a
    // gap, as a busy machine makes them.
    until("the chart shows the lag", || {
        let label = browser.text(
            "const card = [...document.querySelectorAll('#link-list article')]
                 .find((card) => card.querySelector('h3').textContent === 'standby');
             const height = (path) => path.getBBox().height;
             const highest = (paths) => Math.max(0, ...[...card.querySelectorAll(paths)].map(height));
             const [area, line] = [highest('path.area'), highest('path.lag')];
             return area > 5 && line > 5 ? card.querySelector('svg.chart').getAttribute('aria-label') : ''",
        );
        (!label.is_empty()).then(|| assert!(label.contains("at most"), "{label}"))
    });
    let place = until("the picture of the topology shows it", || {
        let place = browser
            .text("return document.querySelector('#places [data-level=lag]')?.textContent ?? ''");
        (!place.is_empty()).then_some(place)
    });
    for part in ["▲ standby", "from primary", "lag ", "replay is paused"] {
        assert!(place.contains(part), "{place}");
    }
    let failover = browser.text(FAILOVER);
    for part in [
        "Ready to fail over not ready",
        "standby",
        "replay is paused",
        "would be replayed first",
    ] {
        assert!(failover.contains(part), "{part}: {failover}");
    }
    let servers = browser.text("return document.getElementById('node-list').textContent");
    assert!(servers.contains(" of 1.0 TB"), "{servers}");
    values_are_at_the_pointer(browser);
    assert!(incident(browser).contains("– now"), "{}", incident(browser));
    take_pictures(browser, "paused");
    stage.heal(injected).unwrap();
    verdict_with(browser, "No replica that could be asked lags");
    let left = browser.text("return document.getElementById('causes').textContent");
    assert!(!left.contains("replay is paused"), "{left}");
    let over = until("the incident has an end", || {
        let one = incident(browser);
        (!one.contains("– now")).then_some(one)
    });
    for part in ["▲ lag", "standby", "replay is paused"] {
        assert!(over.contains(part), "{over}");
    }
    // On a busy machine a look that came late leaves only a lower bound.
    assert!(
        over.contains("at most ") || over.contains("at least "),
        "{over}"
    );
    until("the standby is ready", || {
        let ready = "Ready to fail over standby is the first choice";
        browser.text(FAILOVER).starts_with(ready).then_some(())
    });
    edges_lead_to_replicas(browser);
}

const FAILOVER: &str = "return document.getElementById('failover').textContent.trim()";

/// The incident of the standby that lagged.
fn incident(browser: &Browser) -> String {
    browser.text(
        "return [...document.querySelectorAll('#incident-list li')]
             .find((one) => one.querySelector('.what').textContent === '▲ lag'
                 && one.querySelector('strong').textContent === 'standby')?.textContent ?? ''",
    )
}

/// An axis with figures, and the figures of the moment below the pointer.
fn values_are_at_the_pointer(browser: &Browser) {
    browser.resize(1280, 900, false);
    let card = "const card = [...document.querySelectorAll('#link-list article')]
         .find((card) => card.querySelector('h3').textContent === 'standby');";
    let middle = format!(
        "{card} card.scrollIntoView({{ block: 'center' }});
         const box = card.querySelector('svg.chart').getBoundingClientRect();
         return [box.right - 3, box.top + box.height / 2]"
    );
    // The pointer goes there again if the page was still moving.
    let said = until("the figures are shown", || {
        let at = browser.run(&middle);
        browser.chromium(
            "Input.dispatchMouseEvent",
            serde_json::json!({"type": "mouseMoved", "x": at[0], "y": at[1]}),
        );
        let said = browser.text(&format!(
            "{card} return card.querySelector('.readout').textContent"
        ));
        said.contains(" · replay ").then_some(said)
    });
    assert!(said.contains(": "), "{said}");
    let labels = browser.run(&format!(
        "{card} return [...card.querySelectorAll('svg.chart text')].map((one) => one.textContent)"
    ));
    let labels = labels.as_array().unwrap();
    assert!(
        labels.contains(&"0".into()) && labels.len() >= 8,
        "{labels:?}"
    );
    browser.chromium(
        "Input.dispatchMouseEvent",
        serde_json::json!({"type": "mouseMoved", "x": 1, "y": 1}),
    );
}

/// Each replica that has an upstream has an edge that ends at its box, at every width.
fn edges_lead_to_replicas(browser: &Browser) {
    // Primary, three replicas that were named, one that was not, and one that is lost.
    for width in [360, 1280, 1920] {
        until_drawn(browser, width, 6, 4);
    }
}

/// At this width the picture of the topology has so many boxes and edges, all inside it and apart
/// from each other, and nothing on the page reaches beyond the window.
pub fn until_drawn(browser: &Browser, width: u32, boxes: usize, edges: usize) {
    browser.resize(width, 900, width == 360);
    let expected = serde_json::json!([boxes, edges, true, true, true]);
    let mut last = serde_json::Value::Null;
    until(&format!("the picture fits {width} px"), || {
        let found = browser.run(
            "const boxOf = (one) => one.getBoundingClientRect();
             const map = boxOf(document.getElementById('map'));
             const inside = (box) => box.left >= map.left - 1 && box.right <= map.right + 1
                 && box.top >= map.top - 1 && box.bottom <= map.bottom + 1;
             const places = [...document.querySelectorAll('.place')].map(boxOf);
             const apart = places.every((one, at) => places.slice(at + 1).every((two) =>
                 one.right <= two.left || two.right <= one.left
                 || one.bottom <= two.top || two.bottom <= one.top));
             const edges = [...document.querySelectorAll('#edges .edge')];
             const drawn = [...document.querySelectorAll('#edges *')].map(boxOf);
             const text = [...document.querySelectorAll('.place > .first')];
             const cut = text.filter((one) => one.scrollWidth > one.clientWidth + 1);
             return [places.length, edges.length, places.every(inside) && apart,
                 drawn.every(inside), cut.length === 0]",
        );
        if found != last {
            println!("picture at {width} px: {found}");
            last.clone_from(&found);
        }
        (found == expected).then_some(())
    });
    assert_eq!(too_wide(browser), serde_json::json!([width, 0, []]));
}

/// The window's width, by how much the page is wider than what the scroll bar leaves of it, and what
/// reaches beyond.
fn too_wide(browser: &Browser) -> serde_json::Value {
    browser.run(
        "const all = [...document.querySelectorAll('body *')]
             .filter((one) => !one.closest('.scroll table, svg, .unseen, .skip'));
         const page = document.documentElement;
         const wide = all.filter((one) => one.getBoundingClientRect().right > page.clientWidth + 0.5);
         return [innerWidth, page.scrollWidth - page.clientWidth,
             wide.map((one) => one.outerHTML.slice(0, 120))]",
    )
}

/// What servers say is shown as it is, and never becomes a part of the page.
fn names_are_text(browser: &Browser, lab: &Lab, stage: &mut Stage) {
    let fault = Fault::named("recovery conflict").unwrap();
    let mut injected = fault.inject(lab, stage, Strength::Strong).unwrap();
    injected.held[0].execute(HOSTILE_QUERY).unwrap();
    let words = verdict_with(browser, "replay waits for a query");
    let culprit = injected.culprit.unwrap();
    assert!(words.contains(&format!("(pid {culprit})")), "{words}");
    until("the query is shown", || {
        let query = browser.text("return document.querySelector('#cause-list pre')?.textContent");
        (query == HOSTILE_QUERY).then_some(())
    });
    let names = browser.run(
        "return [...document.querySelectorAll('#link-list h3')].map((name) => name.textContent)",
    );
    assert!(
        names.as_array().unwrap().contains(&HOSTILE_NAME.into()),
        "{names}"
    );
    assert_eq!(browser.run("return document.images.length"), 0);
    take_pictures(browser, "conflict");
    stage.heal(injected).unwrap();
    verdict_with(browser, "No replica that could be asked lags");
}

/// What is focused, in words.
const FOCUSED: &str = "const at = document.activeElement;
    return at === document.body ? 'body'
        : `${at.localName}:${at.value ?? at.getAttribute('aria-label') ?? at.textContent}`";

const TAB: char = '\u{e004}';
const ENTER: char = '\u{e007}';
const RIGHT: char = '\u{e014}';

/// From the top, with the tabulator: in the order of the page, visibly, and back.
fn keyboard_reaches_everything(browser: &Browser) {
    browser.resize(1280, 900, false);
    browser.run("document.activeElement.blur(); scrollTo(0, 0)");
    let next = |shift| {
        browser.press(TAB, shift);
        browser.text(FOCUSED)
    };
    let seen: Vec<String> = std::iter::repeat_with(|| next(false))
        .take_while(|at| at != "body")
        .take(60)
        .collect();
    let place = |words: &str| {
        let found = seen.iter().position(|at| at.contains(words));
        found.unwrap_or_else(|| panic!("{words}: {seen:?}"))
    };
    let order = [
        "a:Skip to the replicas",
        "input:300000",
        "summary:Positions",
        "summary:The chart as a table",
        "a:metrics",
        "a:api/state",
    ];
    let places = order.map(place);
    assert!(places.is_sorted(), "{seen:?}");
    assert_eq!(places[0], 0, "{seen:?}");
    let opens = |at: &&String| at.starts_with("summary:Positions");
    let summaries = seen.iter().filter(opens).count();
    let cards = browser.run("return document.querySelectorAll('#link-list svg.chart').length");
    assert_eq!(cards, summaries, "{seen:?}");
    // Each card's Enter opens it, which stays so while news come; focus as well.
    browser.run("document.activeElement.blur(); document.querySelector('.skip').focus()");
    browser.press(ENTER, false);
    while !browser.text(FOCUSED).starts_with("summary:The chart") {
        browser.press(TAB, false);
    }
    browser.press(ENTER, false);
    let number = "return document.querySelector('#news').textContent";
    let before = browser.text(number);
    until("two more states", || {
        (browser.text(number) != before).then_some(())
    });
    assert!(browser.text(FOCUSED).starts_with("summary:The chart"));
    let rows = browser.run("return document.querySelectorAll('details[open] tbody tr').length");
    assert!(rows.as_u64().unwrap() >= 1, "{rows}");
    let outline = browser.text("return getComputedStyle(document.activeElement).outlineStyle");
    assert_eq!(outline, "solid");
    assert!(next(false).starts_with("div:Figures of"));
    assert!(next(true).starts_with("summary:The chart"));
    browser.press(ENTER, false);
}

/// The arrow keys choose how much time is shown.
fn time_shown_can_be_chosen(browser: &Browser) {
    browser.run("document.querySelector('#span input:checked').focus()");
    browser.press(RIGHT, false);
    assert_eq!(browser.text(FOCUSED), "input:900000");
    until("the chart says so", || {
        let label = browser.text(
            "return document.querySelector('#link-list svg.chart').getAttribute('aria-label')",
        );
        label.contains("the last 15 minutes: lag").then_some(())
    });
}

/// No scrolling to the side, with everything open and hostile names.
fn fits_a_phone(browser: &Browser) {
    browser.resize(360, 740, true);
    browser.run("for (const one of document.querySelectorAll('details')) one.open = true");
    // The picture of the topology is drawn anew with the next news.
    let fits = || too_wide(browser) == serde_json::json!([360, 0, []]);
    until("all of it fits", || fits().then_some(()));
    // What is to be touched is large enough.
    let low = browser.run(
        "return [...document.querySelectorAll('#span label, summary')]
             .map((one) => one.getBoundingClientRect().height)
             .filter((height) => height > 0 && height < 36).length",
    );
    assert_eq!(low, 0);
    if let Some(folder) = pictures() {
        browser.picture(&folder.join("open-phone.png"));
    }
    browser.run("for (const one of document.querySelectorAll('details')) one.open = false");
}

/// The server is gone.
fn loss_is_said(browser: &Browser, serve: &mut Serve) {
    serve.signal(nix::sys::signal::Signal::SIGTERM);
    assert!(serve.ended().success());
    let said = until("the loss is said", || {
        let said = browser.text(
            "const lost = document.getElementById('lost'); return lost.hidden ? '' : lost.textContent",
        );
        (!said.is_empty()).then_some(said)
    });
    assert!(
        said.starts_with("No news since ") && said.contains("is old"),
        "{said}"
    );
    assert!(
        browser
            .text("return document.title")
            .starts_with("? No news since ")
    );
    take_pictures(browser, "lost");
}

/// Another one in its place: the page goes on by itself, with the curves and incidents of before.
fn news_come_again(browser: &Browser, watched: &[&str], address: &str) {
    let _serve = Serve::start(&[watched, &["--listen", address]].concat());
    until("the loss is over, and the nodes have answered", || {
        let title =
            browser.text("return document.getElementById('lost').hidden ? document.title : ''");
        title
            .contains("No replica that could be asked lags")
            .then_some(())
    });
    // A page that is opened anew has nothing of its own.
    browser.open(&format!("http://{address}/"));
    until("incidents and curves are there", || {
        let one = incident(browser);
        let label = browser.text(
            "const card = [...document.querySelectorAll('#link-list article')]
                 .find((card) => card.querySelector('h3').textContent === 'standby');
             return card?.querySelector('svg.chart')?.getAttribute('aria-label') ?? ''",
        );
        let peak = !label.contains("at most 0 ms") && label.contains("at most");
        (one.contains("replay is paused") && peak).then_some(())
    });
    let longest = browser.run(
        "return document.querySelector('#span [value=\"604800000\"]').closest('label').hidden",
    );
    assert_eq!(longest, false);
}
