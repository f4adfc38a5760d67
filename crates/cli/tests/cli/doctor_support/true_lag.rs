//! How far behind replicas really are, measured without any of doctor's code: own sessions ask
//! every server for its position from before a fault begins, by one clock.
//!
//! The lag is at most the time since there is WAL that a replica has not reached, and at least the
//! time since the first commit that it surely has not: while a transaction of many seconds is
//! written, the two are as far apart.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockstep_bench::fault::Stage;
use lockstep_lab::server::{SUPERUSER, Server};
use lockstep_lag::figures::median;
use lockstep_wire::Lsn;
use serde_json::{Value, json};

/// Interval at which each server is asked, and lag is looked at.
const EVERY: Duration = Duration::from_millis(50);
const EVERY_MS: f64 = 50.0;

/// How far doctor's lag may be from the true one: this many milliseconds,
const APART_MS: f64 = 200.0;

/// or this part of the true one.
const APART: f64 = 0.2;

/// Steps between the moments at which doctor's watch may have begun.
const STEP_MS: f64 = 100.0;

/// The name under which the end of the primary's WAL is kept, and the time of its last commit.
const END: &str = "end";
const COMMIT: &str = "commit";

/// Names with their positions, as SQL, for each server. A replica may have several: the furthest
/// counts, since a subscriber's own is of its last transaction, and the primary knows of WAL after
/// that which has nothing for it.
const PRIMARY: &str = "SELECT 'end', pg_current_wal_flush_lsn()::text UNION ALL \
    SELECT 'commit', (1000 * extract(epoch FROM timestamp))::text FROM pg_last_committed_xact() \
    UNION ALL SELECT application_name, replay_lsn::text FROM pg_stat_replication \
    WHERE application_name IN ('first', 'second', 'once', 'again', 'shard_b')";
const STANDBY: &str = "SELECT 'standby', pg_last_wal_replay_lsn()::text";
const SUBSCRIBER: &str = "SELECT subname, remote_lsn::text FROM pg_subscription s \
    JOIN pg_replication_origin_status ON external_id = 'pg_' || s.oid";

/// An answer: a name, when it was given (milliseconds since 1970), and what it says.
type Answer = (String, f64, String);

/// Threads that ask until they are told to end.
pub struct Probing {
    /// When doctor was started.
    began_ms: f64,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Vec<Answer>>>,
}

/// What was asked, oldest first; times are milliseconds since 1970.
#[derive(Default)]
pub struct Probed {
    /// Ends of the primary's WAL.
    ends: Vec<(f64, Lsn)>,
    /// When doctor was started.
    began_ms: f64,
    /// Times of commits, each with an end of the WAL from before it.
    commits: Vec<(f64, Lsn)>,
    /// What each replica had reached.
    reached: BTreeMap<String, Vec<(f64, Lsn)>>,
}

fn now_ms() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap().as_secs_f64() * 1000.0
}

impl Probing {
    /// Begins. All replicas have caught up.
    pub fn start(stage: &Stage) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let servers = [
            (&stage.primary, PRIMARY),
            (&stage.standby, STANDBY),
            (&stage.first, SUBSCRIBER),
            (&stage.second, SUBSCRIBER),
        ];
        let ask = |(server, sql)| positions(server, sql, Arc::clone(&stop));
        Self {
            began_ms: now_ms(),
            threads: servers.map(ask).into(),
            stop,
        }
    }

    /// Doctor comes now.
    pub fn watched(&mut self) {
        self.began_ms = now_ms();
    }

    pub fn end(self) -> Probed {
        self.stop.store(true, Ordering::Relaxed);
        let threads = self.threads.into_iter();
        let answers = threads.flat_map(|thread| thread.join().unwrap());
        Probed {
            began_ms: self.began_ms,
            ..Probed::of(answers.collect())
        }
    }
}

fn positions(server: &Server, sql: &'static str, stop: Arc<AtomicBool>) -> JoinHandle<Vec<Answer>> {
    let address = server.config(SUPERUSER, "lockstep probing");
    let mut client = address.connect().unwrap();
    thread::spawn(move || {
        let mut seen = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let asked = now_ms();
            let Ok(rows) = client.query(sql) else {
                // A fault may start the server anew.
                thread::sleep(EVERY);
                client = address.connect().unwrap_or(client);
                continue;
            };
            let at = (asked + now_ms()) / 2.0;
            for row in rows {
                if let [Some(name), Some(said)] = row.as_slice() {
                    seen.push((name.clone(), at, said.clone()));
                }
            }
            thread::sleep(EVERY);
        }
        seen
    })
}

impl Probed {
    fn of(mut answers: Vec<Answer>) -> Self {
        answers.sort_by(|a, b| a.1.total_cmp(&b.1));
        let mut probed = Self::default();
        let mut before = Lsn::INVALID;
        for (name, at, said) in answers {
            match name.as_str() {
                // It comes before the commit of the same moment.
                END => {
                    before = probed.ends.last().map_or(before, |(_, end)| *end);
                    probed.ends.push((at, said.parse().unwrap()));
                }
                COMMIT => {
                    let commit = said.parse().unwrap();
                    if probed.commits.last().is_none_or(|last| last.0 < commit) {
                        probed.commits.push((commit, before));
                    }
                }
                _ => {
                    let track = probed.reached.entry(name).or_default();
                    let last = track.last().map_or(Lsn::INVALID, |(_, lsn)| *lsn);
                    track.push((at, last.max(said.parse().unwrap())));
                }
            }
        }
        probed
    }

    /// The least and the most that a replica was behind in the middle of a time, milliseconds.
    fn lag_ms(&self, replica: &str, from_ms: f64, to_ms: f64) -> Option<[f64; 2]> {
        let track = self.reached.get(replica)?;
        let since = |of: &[(f64, Lsn)], first: usize, at: f64| {
            let since = of.get(first).map(|(since, _)| at - since);
            since.unwrap_or_default().max(0.0)
        };
        let (mut least, mut most) = (Vec::new(), Vec::new());
        // At even moments: a server whose replay has no time to spare answers late, too.
        let mut at = from_ms;
        while at <= to_ms {
            let known = track.partition_point(|(asked, _)| *asked <= at);
            if let Some((_, reached)) = known.checked_sub(1).map(|last| track[last]) {
                let commit = self
                    .commits
                    .partition_point(|(_, before)| *before < reached);
                let end = self.ends.partition_point(|(_, end)| *end <= reached);
                least.push(since(&self.commits, commit, at));
                most.push(since(&self.ends, end, at));
            }
            at += EVERY_MS;
        }
        (!most.is_empty()).then(|| [median(least), median(most)])
    }

    /// What doctor says of each link whose lag was measured, beside the true one, and what is wrong
    /// with it. A link to a relay is left out: the relay's own position ends on its disk.
    pub fn compare(&self, json: &Value, seconds: u32) -> (Vec<Value>, Option<String>) {
        let length_ms = f64::from(seconds) * 1000.0;
        // On a busy machine doctor is late to begin, or late to end.
        let latest_ms = json["at_ms"].as_f64().unwrap() - length_ms;
        let steps = ((latest_ms - self.began_ms).max(0.0) / STEP_MS).ceil() as u32;
        let mut rows = Vec::new();
        let mut wrong = None;
        for link in json["links"].as_array().unwrap() {
            let replica = link["replica"].as_str().unwrap();
            // A node with several subscriptions is called "node (subscription)".
            let name = replica.split(['(', ')']).nth(1).unwrap_or(replica);
            let lags = (0..=steps).filter_map(|step| {
                let from_ms = latest_ms - f64::from(step) * STEP_MS;
                self.lag_ms(name, from_ms, from_ms + length_ms)
            });
            let Some([least, most]) = lags.reduce(|a, b| [a[0].min(b[0]), a[1].max(b[1])]) else {
                continue;
            };
            // Behind another standby the lag is that behind the primary.
            let link = match &link["behind_primary"] {
                all if all.is_object() => all,
                _ => link,
            };
            let said_ms = link["lag_ms"].as_f64().unwrap();
            let [is_least, is_most] =
                ["lag_is_least", "lag_is_most"].map(|name| link[name] == true);
            rows.push(json!({
                "replica": replica,
                "said_ms": said_ms.round(),
                "at_least": is_least,
                "at_most": is_most,
                "true_ms": [least.round(), most.round()],
            }));
            if !agrees(said_ms, [is_least, is_most], least..=most) {
                let marked = match (is_least, is_most) {
                    (true, _) => "at least ",
                    (_, true) => "at most ",
                    _ => "",
                };
                wrong = Some(format!(
                    "the lag of {replica} is {least:.0} to {most:.0} ms, and doctor says \
                     {marked}{said_ms:.0} ms"
                ));
            }
        }
        (rows, wrong)
    }
}

/// Doctor's lag is near the true one, or is marked as a least or most one and is no more or less.
fn agrees(said_ms: f64, bounds: [bool; 2], true_ms: RangeInclusive<f64>) -> bool {
    let apart = |true_ms: &f64| APART_MS.max(APART * true_ms);
    let (least, most) = (true_ms.start(), true_ms.end());
    let too_little = least - said_ms > apart(least);
    let too_much = said_ms - most > apart(most);
    let [is_least, is_most] = bounds;
    (is_least || !too_little) && (is_most || !too_much)
}

#[test]
fn a_lag_agrees_within_bounds_or_if_it_is_marked() {
    const EXACT: [bool; 2] = [false, false];
    const LEAST: [bool; 2] = [true, false];
    const MOST: [bool; 2] = [false, true];
    for (said_ms, bounds, true_ms, agreed) in [
        (0.0, EXACT, 190.0, true),
        (0.0, EXACT, 210.0, false),
        (0.0, LEAST, 210.0, true),
        (8_100.0, EXACT, 10_000.0, true),
        (7_900.0, EXACT, 10_000.0, false),
        (7_900.0, LEAST, 10_000.0, true),
        // A least lag is no longer than the true one, and a most lag no shorter.
        (12_100.0, LEAST, 10_000.0, false),
        (12_100.0, MOST, 10_000.0, true),
        (7_900.0, MOST, 10_000.0, false),
        (12_100.0, EXACT, 10_000.0, false),
    ] {
        assert_eq!(
            agrees(said_ms, bounds, true_ms..=true_ms),
            agreed,
            "{said_ms} {true_ms}"
        );
    }
}

#[test]
fn lag_is_the_time_since_there_is_more_to_reach() {
    let answer =
        |(name, at, said): &(&str, f64, &str)| ((*name).to_owned(), *at, (*said).to_owned());
    let answers = [
        ("end", 0.0, "0/10"),
        ("commit", 0.0, "-5"),
        ("end", 100.0, "0/20"),
        ("commit", 100.0, "-5"),
        ("s", 150.0, "0/10"),
        ("end", 200.0, "0/30"),
        ("commit", 200.0, "190"),
        ("s", 250.0, "0/20"),
        // What the primary knows may be older.
        ("s", 260.0, "0/10"),
        ("s", 350.0, "0/30"),
    ];
    let probed = Probed::of(answers.iter().map(answer).collect());
    for (from, to, expected) in [
        (0.0, 100.0, None),
        // At 200: WAL since 100, a commit since 190.
        (200.0, 240.0, Some([10.0, 100.0])),
        (300.0, 340.0, Some([110.0, 100.0])),
        (400.0, 500.0, Some([0.0, 0.0])),
    ] {
        assert_eq!(probed.lag_ms("s", from, to), expected, "{from}");
    }
    assert_eq!(probed.lag_ms("t", 0.0, 500.0), None);
}
