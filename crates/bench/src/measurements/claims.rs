//! What Lockstep claims, in one row each: README's table and the longer one of
//! `docs/measurements.md`.

use std::path::Path;

use super::columns::{Better, times_better};
use super::figures::{NONE, ratio, shown};
use super::results::Results;
use super::{RESULTS, Result, line};

enum Figures {
    /// Medians at `CASE/VARIANT/KEY` of ours and of stock.
    Medians {
        ours: &'static str,
        stock: &'static str,
        better: Better,
    },
    /// The headline of the file, whose figures are in the unit of this key.
    Headline(&'static str),
}

struct Claim {
    words: &'static str,
    benchmark: &'static str,
    figures: Figures,
}

/// A claim about the same key and case of both variants.
macro_rules! medians {
    ($better:ident, $ours_case:literal, $stock_case:literal, $key:literal) => {
        Figures::Medians {
            ours: concat!($ours_case, "/lockstep/", $key),
            stock: concat!($stock_case, "/stock/", $key),
            better: Better::$better,
        }
    };
    ($better:ident, $case:literal, $key:literal) => {
        medians!($better, $case, $case, $key)
    };
}

/// README's claims: one about each part of Lockstep, and what reading loses.
const README_CLAIMS: &[Claim] = &[
    Claim {
        words: "Replay lag under 128 readers, whose queries aggregate 3,000 rows each: median",
        benchmark: "priority",
        figures: medians!(Lower, "aggregate", "lag_p50_ms"),
    },
    Claim {
        words: "What that costs: aggregates read a second",
        benchmark: "priority",
        figures: medians!(Higher, "aggregate", "read_tps"),
    },
    Claim {
        words: "Replay of updates of three indexed columns, on two cores by two processes, data in memory",
        benchmark: "replay",
        figures: medians!(Lower, "update-cached-local", "seconds"),
    },
    Claim {
        words: "Transactions a second on a primary with eight logical subscribers, through a relay",
        benchmark: "relay-fanout",
        figures: medians!(Higher, "subscribers-8", "primary_tps"),
    },
    Claim {
        words: "Changes of TPC-B transactions that a replica applies a second, and a subscription",
        benchmark: "apply",
        figures: medians!(Higher, "tpcb", "rows_per_s"),
    },
    Claim {
        words: "Causes of lag that doctor names first, of 32 injected",
        benchmark: "doctor-matrix",
        figures: Figures::Headline("causes"),
    },
];

/// What else is claimed, in `docs/measurements.md` only.
const MORE_CLAIMS: &[Claim] = &[
    Claim {
        words: "Replay lag under 128 readers, whose queries aggregate 3,000 rows each: 99th percentile",
        benchmark: "priority",
        figures: medians!(Lower, "aggregate", "lag_p99_ms"),
    },
    Claim {
        words: "the same: at the end of ten minutes",
        benchmark: "priority",
        figures: medians!(Lower, "aggregate-10min", "lag_end_ms"),
    },
    Claim {
        words: "the same: transactions a second on the primary over ten minutes",
        benchmark: "priority",
        figures: medians!(Higher, "aggregate-10min", "primary_tps"),
    },
    Claim {
        words: "Replay lag under 128 readers of single rows: 99th percentile",
        benchmark: "priority",
        figures: medians!(Lower, "select", "lag_p99_ms"),
    },
    Claim {
        words: "the same: rows read a second",
        benchmark: "priority",
        figures: medians!(Higher, "select", "read_tps"),
    },
    Claim {
        words: "Highest rate of WAL at which lag stays bounded under 128 readers (0: at none that was tried)",
        benchmark: "load-curve",
        figures: Figures::Headline("mb_per_s"),
    },
    Claim {
        words: "Look-ups a second while the read throttle is on and has nothing to do",
        benchmark: "overhead",
        figures: Figures::Headline("read_tps"),
    },
    Claim {
        words: "WAL that a standby replays on one core, updates of three indexed columns, data in memory",
        benchmark: "replay",
        figures: Figures::Headline("mb_per_s"),
    },
    Claim {
        words: "Replay of TPC-C on two cores by two processes, all WAL there",
        benchmark: "replay",
        figures: medians!(Lower, "tpcc-cached-local", "seconds"),
    },
    Claim {
        words: "the same: rows with random keys",
        benchmark: "replay",
        figures: medians!(Lower, "uuid-insert-cached-local", "seconds"),
    },
    Claim {
        words: "the same: TPC-C, 30 % in memory and reads of 1 ms, four helpers",
        benchmark: "replay",
        figures: medians!(Lower, "tpcc-30pct-1ms-local", "seconds"),
    },
    Claim {
        words: "Redo of 2 GB of WAL after a crash, two cores",
        benchmark: "replay",
        figures: medians!(Lower, "crash-recovery", "seconds"),
    },
    Claim {
        words: "the same: until it accepts connections",
        benchmark: "replay",
        figures: medians!(Lower, "crash-recovery", "ready_seconds"),
    },
    Claim {
        words: "CPU of decoding 100,000 TPC-B transactions once",
        benchmark: "decode",
        figures: Figures::Headline("cpu_s"),
    },
    Claim {
        words: "Transactions a second on a primary with eight logical subscribers through a relay, and of stock without any",
        benchmark: "relay-fanout",
        figures: medians!(Higher, "subscribers-8", "subscribers-0", "primary_tps"),
    },
    Claim {
        words: "Rows a second at each of eight subscribers, with transactions of 200,000 rows among small ones",
        benchmark: "relay-mixed",
        figures: medians!(Higher, "mixed-16MB", "rows_per_s"),
    },
    Claim {
        words: "Time to send 200,000 transactions to a consumer that comes back",
        benchmark: "relay-catchup",
        figures: medians!(Lower, "null-16MB", "null", "seconds"),
    },
    Claim {
        words: "Commit at `synchronous_commit = on` with a synchronous subscriber, by default and with doctor's remedy",
        benchmark: "commit-levels",
        figures: Figures::Headline("on_ms"),
    },
    Claim {
        words: "CPU that watching 20 nodes costs their primary, of one core",
        benchmark: "watching",
        figures: medians!(Neither, "pg15 20 nodes", "sampling_cpu_percent"),
    },
    Claim {
        words: "the same with `--heartbeat`, of a standby whose replay is paused",
        benchmark: "watching",
        figures: Figures::Medians {
            ours: "pg15 20 nodes/heartbeat, paused/standby_cpu_percent",
            stock: "pg15 20 nodes/stock/standby_cpu_percent",
            better: Better::Neither,
        },
    },
];

/// README's table.
pub fn short_table(folder: &Path) -> Result<String> {
    table(folder, README_CLAIMS, RESULTS)
}

/// The table of `docs/measurements.md`, with README's claims first.
pub fn whole_table(folder: &Path) -> Result<String> {
    let claims: Vec<_> = README_CLAIMS.iter().chain(MORE_CLAIMS).collect();
    let text = table(folder, claims, &format!("../{RESULTS}"))?;
    Ok(text.trim_end().to_owned())
}

/// `linked` is the folder of the results as the page links to it.
fn table<'a>(
    folder: &Path,
    claims: impl IntoIterator<Item = &'a Claim>,
    linked: &str,
) -> Result<String> {
    let mut text = String::from(
        "| claim | ours | stock | ratio | command and source |\n|---|---:|---:|---:|---|\n",
    );
    for claim in claims {
        let results = Results::load(folder, claim.benchmark)?;
        let [ours, stock, times] = claim.cells(&results)?;
        let source = format!(
            "[`{}`]({linked}/{}.json)",
            results.short_command(),
            results.name
        );
        let cells = [claim.words, &ours, &stock, &times, &source];
        text.push_str(&line(cells.into_iter()));
        text.push('\n');
    }
    Ok(text)
}

impl Claim {
    /// Ours, stock's, and how many times better ours is.
    fn cells(&self, results: &Results) -> Result<[String; 3]> {
        let (key, ours, stock, times) = match &self.figures {
            Figures::Medians {
                ours,
                stock,
                better,
            } => {
                let (key, ours) = results.median_at(ours)?;
                let stock = match better {
                    Better::Neither => None,
                    _ => Some(results.median_at(stock)?.1),
                };
                let times = stock.and_then(|stock| times_better(*better, ours, stock));
                (key, ours, stock, times)
            }
            Figures::Headline(key) => {
                let headline = results.headline.as_ref();
                let headline = headline.ok_or_else(|| results.missing("headline"))?;
                (*key, headline.ours, headline.stock, headline.ratio)
            }
        };
        let or_none = |text: Option<String>| text.unwrap_or_else(|| NONE.to_owned());
        Ok([
            shown(key, ours),
            or_none(stock.map(|stock| shown(key, stock))),
            or_none(times.map(ratio)),
        ])
    }
}
