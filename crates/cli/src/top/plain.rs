//! Lines for pipes and files: without escape codes, each line complete by itself, flushed after
//! each sample. Ends without an error when nobody reads any more.

use std::io::{ErrorKind, Write};
use std::sync::Arc;
use std::time::Duration;

use lockstep_lag::monitor::{Monitor, MonitorState};
use lockstep_service::words::brief::{bytes, time};
use lockstep_service::words::date;
use lockstep_service::words::output::Output;

use super::figures::{left, one_line, right, width};
use super::rows::{TopRow, headline, rows};
use super::{Samples, ended};

/// How long one wait for a sample takes at most.
const PATIENCE: Duration = Duration::from_secs(1);

/// Writes samples of each cluster until there are `most`. Returns the last ones, or None if nobody reads any
/// more.
pub fn run(
    monitors: &[Monitor],
    output: Output,
    most: Option<u64>,
    to: &mut impl Write,
) -> anyhow::Result<Option<Vec<Arc<MonitorState>>>> {
    let mut samples: Vec<Samples> = monitors.iter().map(|_| Samples::new(most)).collect();
    let mut seen = vec![0; monitors.len()];
    loop {
        for ((monitor, samples), seen) in monitors.iter().zip(&mut samples).zip(&mut seen) {
            if samples.is_over() {
                continue;
            }
            let state = monitor.state_after(*seen, PATIENCE);
            *seen = state.number;
            if !samples.take(&state) {
                continue;
            }
            let block = match output {
                Output::Text => lines(&state),
                Output::Json => format!("{}\n", serde_json::to_string(&*state)?),
            };
            match to.write_all(block.as_bytes()).and_then(|()| to.flush()) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
        if let Some(last) = ended(samples.iter()) {
            return Ok(Some(last));
        }
    }
}

/// A sample as text: a summary line, then a line for each row, with nodes in the order in which
/// the command line names them. Each line has the name of the cluster, if it has one.
pub fn lines(state: &MonitorState) -> String {
    let rows = rows(state);
    let cluster = state.cluster.as_ref().map(|name| format!(" {name}"));
    let when = date::iso(state.at_ms) + &cluster.unwrap_or_default();
    let (_, words) = headline(&rows, &state.diagnosis);
    let mut text = format!("{when} {}\n", one_line(&words));
    let wide = rows.iter().map(|row| width(&row.name)).max().unwrap_or(0);
    for row in &rows {
        text.push_str(&format!("{when} {}\n", line(state, row, wide)));
    }
    text
}

fn line(state: &MonitorState, row: &TopRow, wide: usize) -> String {
    let mut cells = vec![
        left(row.status.word(), 8),
        left(&row.name, wide),
        left(&row.kind, 10),
    ];
    if let (Some(lag), Some(most), Some(behind)) = (row.lag(), row.most_ms, row.bytes) {
        cells.push(format!("lag {}", right(&lag, 7)));
        cells.push(format!("max {}", right(&time(most), 6)));
        cells.push(format!("behind {}", right(&bytes(behind as f64), 6)));
        cells.push(left(row.stage.unwrap_or("-"), 7));
    }
    let node = row.node.and_then(|index| state.nodes.get(index));
    let rate = node
        .filter(|_| row.is_primary)
        .and_then(|node| node.wal_bytes_per_s);
    cells.extend(rate.map(|rate| format!("WAL {}/s", right(&bytes(rate), 6))));
    let link = row.link.and_then(|index| state.links.get(index));
    let visible = link.and_then(|link| link.visible_ms);
    cells.extend(visible.map(|ms| format!("visible after {}", right(&time(ms), 6))));
    cells.push(row.cause.clone());
    cells.join("  ").trim_end().to_owned()
}
