//! Lockstep's claims, one row each: README's table and the longer one in
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

/// README's claims: one about each part of Lockstep, and the price that readers pay.
const README_CLAIMS: &[Claim] = &[
    Claim {
        words: "Median replay lag under 128 readers, each query aggregating 3,000 rows",
        benchmark: "priority",
        figures: medians!(Lower, "aggregate", "lag_p50_ms"),
    },
    Claim {
        words: "The price of that: aggregate queries answered a second",
        benchmark: "priority",
        figures: medians!(Higher, "aggregate", "read_tps"),
    },
    Claim {
        words: "Time to replay updates of three indexed columns: two cores, two processes, data in memory",
        benchmark: "replay",
        figures: medians!(Lower, "update-cached-local", "seconds"),
    },
    Claim {
        words: "Transactions a second on a primary with eight logical subscribers (ours: through a relay)",
        benchmark: "relay-fanout",
        figures: medians!(Higher, "subscribers-8", "primary_tps"),
    },
    Claim {
        words: "TPC-B changes applied a second while catching up (ours: a replica, stock: a subscription)",
        benchmark: "apply",
        figures: medians!(Higher, "tpcb", "rows_per_s"),
    },
    Claim {
        words: "Injected causes of lag that doctor named first, each in its newest run",
        benchmark: "doctor-matrix",
        figures: Figures::Headline("causes"),
    },
];

/// Further claims, in `docs/measurements.md` only.
const MORE_CLAIMS: &[Claim] = &[
    Claim {
        words: "99th percentile of replay lag under 128 readers, each query aggregating 3,000 rows",
        benchmark: "priority",
        figures: medians!(Lower, "aggregate", "lag_p99_ms"),
    },
    Claim {
        words: "Replay lag under the same readers at the end of ten minutes",
        benchmark: "priority",
        figures: medians!(Lower, "aggregate-10min", "lag_end_ms"),
    },
    Claim {
        words: "Transactions a second on the primary over these ten minutes",
        benchmark: "priority",
        figures: medians!(Higher, "aggregate-10min", "primary_tps"),
    },
    Claim {
        words: "99th percentile of replay lag under 128 readers of single rows",
        benchmark: "priority",
        figures: medians!(Lower, "select", "lag_p99_ms"),
    },
    Claim {
        words: "Rows that these readers read a second",
        benchmark: "priority",
        figures: medians!(Higher, "select", "read_tps"),
    },
    Claim {
        words: "Highest tried rate of WAL at which lag stays bounded under 128 readers (0: at none)",
        benchmark: "load-curve",
        figures: Figures::Headline("mb_per_s"),
    },
    Claim {
        words: "Lookups a second with the read throttle on and nothing to hold back (stock: throttle off)",
        benchmark: "overhead",
        figures: Figures::Headline("read_tps"),
    },
    Claim {
        words: "WAL replayed a second on one core: updates of three indexed columns, data in memory",
        benchmark: "replay",
        figures: Figures::Headline("mb_per_s"),
    },
    Claim {
        words: "Time to replay TPC-C: two cores, two processes, all WAL on disk at the start",
        benchmark: "replay",
        figures: medians!(Lower, "tpcc-cached-local", "seconds"),
    },
    Claim {
        words: "Time to replay inserts of rows with random keys, under the same conditions",
        benchmark: "replay",
        figures: medians!(Lower, "uuid-insert-cached-local", "seconds"),
    },
    Claim {
        words: "Time to replay TPC-C with 30 % of the data in memory, reads of 1 ms, and four helpers",
        benchmark: "replay",
        figures: medians!(Lower, "tpcc-30pct-1ms-local", "seconds"),
    },
    Claim {
        words: "Time for redo of 2 GB of WAL after a crash, on two cores",
        benchmark: "replay",
        figures: medians!(Lower, "crash-recovery", "seconds"),
    },
    Claim {
        words: "Time until that server accepts connections",
        benchmark: "replay",
        figures: medians!(Lower, "crash-recovery", "ready_seconds"),
    },
    Claim {
        words: "CPU time to decode 100,000 TPC-B transactions once",
        benchmark: "decode",
        figures: Figures::Headline("cpu_s"),
    },
    Claim {
        words: "Transactions a second on a primary (ours: eight logical subscribers through a \
            relay, stock: no subscriber)",
        benchmark: "relay-fanout",
        figures: medians!(Higher, "subscribers-8", "subscribers-0", "primary_tps"),
    },
    Claim {
        words: "Rows a second received by each of eight subscribers, with transactions of 200,000 \
            rows among small ones",
        benchmark: "relay-mixed",
        figures: medians!(Higher, "mixed-16MB", "rows_per_s"),
    },
    Claim {
        words: "Time to send 200,000 transactions to a consumer that comes back",
        benchmark: "relay-catchup",
        figures: medians!(Lower, "null-16MB", "null", "seconds"),
    },
    Claim {
        words: "Time of a commit with a synchronous subscriber, `synchronous_commit = on` (ours: \
            with doctor's remedy)",
        benchmark: "commit-levels",
        figures: Figures::Headline("on_ms"),
    },
    Claim {
        words: "CPU of the primary for watching 20 nodes, in percent of one core",
        benchmark: "watching",
        figures: medians!(Neither, "pg15 20 nodes", "sampling_cpu_percent"),
    },
    Claim {
        words: "CPU of a standby whose replay is paused, watched with `--heartbeat`",
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
