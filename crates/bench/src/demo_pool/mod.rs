//! `lockstep-lab demo-pool`: a pool behind a real HAProxy, under load, while one node falls behind, one is
//! killed, and one is added; and what clients saw.

mod report;
mod stage;

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use clap::{Args, value_parser};
use lockstep_lab::cluster::Lab;
use lockstep_lab::machine;
use lockstep_lab::server::{Settings, settings_of};
use lockstep_lab::workload::APP_ROLE;
use lockstep_service::words::{figures, lines};

use crate::args::ServerArgs;
use crate::audience::{Ahead, Audience};
use crate::demo::check_report_path;
use crate::host::{Host, absolute};
use crate::pool::clients::{Pace, Reads, joined, read, write};
use crate::pool::ledger::Ledger;
use crate::pool::newcomer;
use crate::pool::nodes::{AgentRules, Nodes, small};
use crate::pool::proxy::{Checks, Proxy};
use crate::{BenchError, Result, results};
use report::Findings;
use stage::{Act, Stage};

const STANDBYS: usize = 3;
const WRITERS: usize = 16;
const READERS: usize = 64;

/// Commits, and new sessions, a second.
const COMMITS: f64 = 200.0;
const READS: f64 = 60.0;

/// The bound, in words, and the time between two checks of HAProxy.
const BOUND: &str = "500ms";
pub const CHECK_MS: u32 = 200;

/// pgbench's scale of what is copied to the new node.
const SCALE: u32 = 5;

/// Megabytes that a run may need.
const SPACE_MB: u64 = 3_000;

/// `lockstep-lab demo-pool`
#[derive(Debug, Args)]
pub struct PoolDemoArgs {
    /// Seconds for which each state of the pool is shown
    #[arg(long, value_name = "SECONDS", default_value_t = 12, value_parser = value_parser!(u32).range(2..=60))]
    pub seconds: u32,
    /// Where to write the report
    #[arg(long, value_name = "FILE", default_value = "build/demo/pool.html")]
    pub report: PathBuf,
    /// Which servers to use.
    #[command(flatten)]
    pub server: ServerArgs,
}

fn settings() -> Settings {
    let mut settings = small(STANDBYS + 1);
    settings.extend(settings_of([
        ("shared_preload_libraries", "lockstep"),
        ("shared_buffers", "128MB"),
    ]));
    settings
}

pub fn run(args: &PoolDemoArgs, host: &Host, audience: &mut dyn Audience) -> Result<()> {
    // An unusable path is refused now rather than after minutes of work.
    check_report_path(&args.report)?;
    host.check_product()?;
    let lab = host.open_lab(&args.server, true, SPACE_MB)?;
    audience.expect(Ahead::Steps(stage::ACTS));
    audience.say(&format!(
        "PostgreSQL {}: a primary with {WRITERS} writers, {STANDBYS} standbys behind HAProxy with {READERS} readers, \
         a new session for each read. The pool's bound is {BOUND}.",
        args.server.pg
    ));
    let mut nodes = Nodes::start(&lab, STANDBYS, &settings(), WRITERS, false)?;
    nodes.primary()?.execute("CREATE EXTENSION lockstep")?;
    lab.load_data(nodes.primary()?, SCALE)?;
    let rules = AgentRules {
        bound: BOUND,
        settle: "1s",
        rise: "5s",
    };
    // The account of the servers may not be able to enter the folder of the program.
    let product = lab.folder().join("lockstep");
    fs::copy(&host.product, &product).map_err(BenchError::io("copy", &host.product))?;
    nodes.start_agents(&lab, &product, &rules)?;
    let checks = Checks::Agents {
        product: &product,
        when_all_late: "freshest",
    };
    let mut proxy = Proxy::start(&lab, &nodes, checks, CHECK_MS)?;
    proxy.await_readers(STANDBYS)?;
    let (ledger, reads) = (Ledger::new(WRITERS), Reads::default());
    let primary = nodes.primary()?.config(APP_ROLE, "demo writer");
    let (port, stop) = (proxy.reads, AtomicBool::new(false));
    let mut stage = Stage {
        lab: &lab,
        product: &product,
        rules: &rules,
        nodes: &mut nodes,
        proxy: &mut proxy,
        ledger: &ledger,
        reads: &reads,
        length: std::time::Duration::from_secs(args.seconds.into()),
        names: Vec::new(),
    };
    let acts = thread::scope(|scope| {
        let (ledger, reads, primary, stop) = (&ledger, &reads, &primary, &stop);
        let writers: Vec<_> = (0..WRITERS)
            .map(|number| scope.spawn(move || write(ledger, primary, number, COMMITS, stop)))
            .collect();
        for number in 0..READERS {
            let pace = Pace::of(number, READERS, READS);
            scope.spawn(move || read(ledger, reads, port, pace, stop));
        }
        let acts = stage.play(audience);
        stop.store(true, Ordering::Relaxed);
        writers.into_iter().try_for_each(joined).and(acts)
    })?;
    let names = stage.names;
    newcomer::stop(&lab, stage::NEWCOMER)?;
    audience.finish();
    let panels = report::panels(&reads.all(), &reads.failures(), &ledger, &names);
    let findings = findings(args, &lab, acts);
    fs::write(&args.report, report::html(&findings, &panels))
        .map_err(BenchError::io("write", &args.report))?;
    drop((proxy, nodes, lab));
    for line in lines::table(&table(&findings.acts)) {
        audience.result(&line);
    }
    audience.result(&format!("report: {}", absolute(&args.report).display()));
    Ok(())
}

/// The acts, and where and when they were played.
fn findings(args: &PoolDemoArgs, lab: &Lab, acts: Vec<Act>) -> Findings {
    Findings {
        commit: results::commit(),
        postgresql: args.server.pg.to_string(),
        machine: machine::describe(lab.folder(), lab.pinning()),
        date: machine::date(),
        acts,
    }
}

/// What clients saw in each act, as table cells.
fn table(acts: &[Act]) -> Vec<Vec<String>> {
    let head = [
        "",
        "reads",
        "failed",
        "oldest data",
        "last session after",
        "first session again after",
    ];
    let mut table = vec![head.map(str::to_owned).to_vec()];
    let seconds = |time: Option<std::time::Duration>| {
        time.map_or_else(
            || "-".to_owned(),
            |time| figures::ms(time.as_secs_f64() * 1000.0),
        )
    };
    table.extend(acts.iter().map(|act| {
        vec![
            act.title.clone(),
            figures::count(act.seen.reads as f64),
            act.seen.failed.to_string(),
            figures::ms(act.seen.oldest.as_secs_f64() * 1000.0),
            seconds(act.gone_after),
            seconds(act.back_after),
        ]
    }));
    table
}
