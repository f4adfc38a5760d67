//! Faults, and what doctor says about them.

use std::process::Command;
use std::time::Duration;

use lockstep_bench::fault::faults::{
    ARCHIVE_CONFLICT, BEHIND_RELAY, COPY_LACKS_COLUMN, FROZEN_WORKER, GENERATED_COLUMN, NARROW,
    NO_ROLE, NOT_ARCHIVED, PREPARED_LOCK, REFUSING_KEY, REFUSING_TRIGGER, RELAY_SLOT_DROPPED,
    RENAMED_COLUMN, SHARD, SUBSCRIPTION_LOST, UNPARTED,
};
use lockstep_bench::fault::{Fault, Injected, Stage, Strength};
use lockstep_client::Conninfo;
use lockstep_lab::cluster::Lab;
use lockstep_lab::server::{SUPERUSER, Server};
use lockstep_lag::monitor::{LEAST_WINDOW, Monitor, Settings};
use lockstep_lag::rules::Severity;
use lockstep_lag::{Cause, Node, Role};
use serde_json::{Value, json};

pub mod healthy;
pub mod measured;
pub mod remedy;
pub mod true_lag;

use measured::{Measured, Measuring};
use true_lag::Probing;

/// Megabytes that a [`Stage`] and its load need.
pub const SPACE_MB: u64 = 2000;

/// What doctor has said.
pub struct Said {
    pub code: i32,
    pub text: String,
    pub error: String,
}

/// Runs doctor.
pub fn doctor(args: &[&str]) -> Said {
    let output = Command::new(env!("CARGO_BIN_EXE_lockstep"))
        .arg("doctor")
        .args(args)
        .output()
        .unwrap();
    Said {
        code: output.status.code().unwrap(),
        text: String::from_utf8(output.stdout).unwrap(),
        error: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Most times that doctor is asked until it says what is expected.
const TIMES: usize = 10;

/// What doctor says once that is `right`: another program may take the processor for a whole window. What it
/// says the last time if it never is.
pub fn once_right<T>(mut ask: impl FnMut() -> T, right: impl Fn(&T) -> bool) -> T {
    let mut said = ask();
    for _ in 1..TIMES {
        if right(&said) {
            break;
        }
        said = ask();
    }
    said
}

/// The first of the causes.
pub fn first_cause(json: &Value) -> Option<&str> {
    json["findings"][0]["cause"].as_str()
}

/// Runs doctor on all servers of a stage; its exit code and its JSON.
pub fn examine(stage: &Stage, seconds: u32) -> (i32, Value) {
    examine_with(stage, &[], seconds)
}

/// Asks doctor like [`examine`], and tells it of further nodes: an option and a conninfo of each.
pub fn examine_with(stage: &Stage, others: &[[String; 2]], seconds: u32) -> (i32, Value) {
    let others: Vec<[String; 2]> = others.iter().cloned().chain(stage.others()).collect();
    ask(&stage.conninfos(), &others, seconds)
}

/// Asks doctor like [`examine`], with other conninfos for the same servers.
pub fn examine_at(conninfos: &[String; 4], seconds: u32) -> (i32, Value) {
    ask(conninfos, &[], seconds)
}

fn ask(conninfos: &[String; 4], others: &[[String; 2]], seconds: u32) -> (i32, Value) {
    let [primary, standby, first, second] = conninfos;
    let seconds = seconds.to_string();
    let mut args = vec![
        "--primary",
        primary,
        "--standby",
        standby,
        "--subscriber",
        first,
        "--subscriber",
        second,
        "--seconds",
        &seconds,
        "--output",
        "json",
    ];
    args.extend(others.iter().flatten().map(String::as_str));
    let said = doctor(&args);
    let json = serde_json::from_str(&said.text).unwrap_or_else(|_| panic!("{}", said.error));
    (said.code, json)
}

/// Watches servers, each named as its role.
pub fn monitor(nodes: &[(Role, &Server)]) -> Monitor {
    let node = |(role, server): &(Role, &Server)| Node {
        name: role.to_string(),
        role: *role,
        conninfo: Conninfo::parse(&server.conninfo(SUPERUSER)).unwrap(),
    };
    Monitor::start(
        nodes.iter().map(node).collect::<Vec<_>>().into(),
        Settings {
            application_name: "test".to_owned(),
            every: Duration::from_millis(200),
            window: LEAST_WINDOW,
            heartbeat: false,
        },
    )
}

/// Causes in order.
pub fn causes(json: &Value) -> Vec<String> {
    let findings = json["findings"].as_array().unwrap();
    findings
        .iter()
        .map(|finding| finding["cause"].as_str().unwrap().to_owned())
        .collect()
}

/// What is wrong with what doctor says about a fault; None if all is right.
pub fn wrong(fault: &Fault, injected: &Injected, code: i32, json: &Value) -> Option<String> {
    let causes = causes(json);
    if causes.first().map(String::as_str) != Some(fault.cause().id()) {
        return Some(format!(
            "expected {} first, found {causes:?}: {}",
            fault.cause().id(),
            brief(json)
        ));
    }
    let expected = i32::from(fault.severity == Severity::Lag) * 6;
    if code != expected {
        return Some(format!(
            "exit code {code} instead of {expected}, not known: {}; {}",
            json["unknown"],
            brief(json)
        ));
    }
    let first = &json["findings"][0];
    if first["severity"] != fault.severity.name() {
        return Some(format!("it is called {}", first["severity"]));
    }
    if let Some(culprit) = injected.culprit {
        let pid = first["names"]["pid"].as_str().unwrap_or_default();
        if pid != culprit.to_string() {
            return Some(format!("blames process {pid} instead of {culprit}"));
        }
    }
    if let Some((name, expected)) = to_be_named(fault) {
        if first["names"][name] != expected {
            return Some(format!(
                "names {name} {} instead of {expected}",
                first["names"][name]
            ));
        }
    }
    if fault.severity != Severity::Note && first["remedies"].as_array().is_none_or(Vec::is_empty) {
        return Some("proposes nothing".to_owned());
    }
    None
}

/// Nothing is wrong with any node, and everything could be seen.
pub fn untroubled(json: &Value) -> bool {
    let nodes = json["nodes"].as_array().unwrap();
    let none = |node: &Value| node["troubles"].as_array().is_some_and(Vec::is_empty);
    nodes.iter().all(none)
}

/// Findings and links in few words.
pub fn brief(json: &Value) -> String {
    let mut words = Vec::new();
    for finding in json["findings"].as_array().unwrap() {
        let facts = finding["evidence"].as_array().unwrap();
        let facts: Vec<&str> = facts
            .iter()
            .map(|fact| fact["words"].as_str().unwrap())
            .collect();
        words.push(format!(
            "{} at {} ({}): {}",
            finding["cause"],
            finding["at"],
            finding["explains"],
            facts.join("; ")
        ));
    }
    for link in json["links"].as_array().unwrap() {
        words.push(format!("{link}"));
    }
    words.join("\n    ")
}

/// What doctor says without the subscription whose table is being copied for the first time: where its apply
/// worker is meanwhile is no lag.
pub fn without_copies(json: &Value) -> Value {
    let mut json = json.clone();
    let links = json["links"].as_array_mut().unwrap();
    links.retain(|link| link["replica"] != "second (extra)" || link["behind"] == true);
    json
}

/// What the first finding has to name, beside the process that is to blame.
fn to_be_named(fault: &Fault) -> Option<(&'static str, &'static str)> {
    match fault.cause() {
        Cause::SlotLost if fault.name == SUBSCRIPTION_LOST => Some(("slot", "second")),
        Cause::RetainedWalNearLimit | Cause::UnusedSlot | Cause::SlotLost => {
            Some(("slot", "forgotten"))
        }
        Cause::ApplyStopped if fault.name == REFUSING_TRIGGER => Some(("trigger", "refuse")),
        Cause::ApplyStopped if fault.name == REFUSING_KEY => Some(("constraint", "child_key")),
        // Its column has one of two names, or is the key.
        Cause::ApplyStopped if fault.name == NARROW => None,
        Cause::ApplyStopped if fault.name == UNPARTED => Some(("open_table", "public.ranged")),
        Cause::ApplyStopped
        | Cause::PublicationMissing
        | Cause::NoFreeWorker
        | Cause::SubscriptionRefused => Some(("subscription", "second")),
        Cause::SubscriptionSlotMissing if fault.name == SHARD => Some(("slot", "shard_a")),
        Cause::SubscriptionSlotMissing => Some(("slot", "second")),
        Cause::KeyMissing => Some(("tables", "public.found")),
        Cause::ValueMissing => Some(("columns", "own of public.t")),
        Cause::SlotMissing => Some(("slot", "gone")),
        Cause::WalRemoved => Some(("upstream", "primary")),
        Cause::ConfirmsNothing => Some(("slot", "etl")),
        // Its names take turns.
        Cause::ColumnsMissing if [RENAMED_COLUMN, GENERATED_COLUMN].contains(&fault.name) => None,
        Cause::ColumnsMissing if fault.name == COPY_LACKS_COLUMN => {
            Some(("columns", "w of public.copied"))
        }
        Cause::TableMissing => Some(("tables", "public.added")),
        Cause::SlotTaken => Some(("other", "clone")),
        Cause::TwoPrimaries => Some(("node", "rival")),
        Cause::TimelineDiverged => Some(("node", "diverged")),
        Cause::UpstreamNotAsked
        | Cause::NoUpstream
        | Cause::RestoreFails
        | Cause::RestoreSlow
        | Cause::NotArchivedYet => Some(("node", "standby")),
        Cause::OwnerRefused => Some(("role", "keeper")),
        Cause::OwnerLacksRights => Some(("tables", "public.t")),
        Cause::ColumnListsDiffer => Some(("table", "public.listed")),
        Cause::TableFollowedTwice => Some(("tables", "public.twice")),
        Cause::ProbeLeft => Some(("node", "primary")),
        Cause::RelayNotStreaming => Some(("relay", "relay")),
        Cause::ReplicaPaused
        | Cause::ReplicaStopped
        | Cause::ReplicaNotRunning
        | Cause::ReplicaSilent
        | Cause::ReplicaHeld
        | Cause::ReplicaIncomplete
        | Cause::ReplicaRowsMissing => Some(("replica", "copied")),
        Cause::TablesUnlogged => Some(("tables", "public.keyed")),
        Cause::SlotUnsuitable => Some(("spare", "second_pgoutput")),
        Cause::PartitionRootDiffers => Some(("publication", "extra")),
        Cause::RoleRefused if fault.name == NO_ROLE => Some(("role", "nobody")),
        Cause::InitialSyncBlocked | Cause::InitialSyncFails => Some(("tables", "public.copied")),
        Cause::ConnectionLost | Cause::NotStreaming => Some(("node", "standby")),
        Cause::NoReplicaIdentity => Some(("tables", "public.keyless")),
        Cause::ColumnsMissing => Some(("columns", "w of public.t")),
        Cause::RoleRefused => Some(("role", "streamer")),
        Cause::CollationVersion => Some(("database", "sorted")),
        Cause::PreparedTransaction => Some(("gid", "forgotten")),
        Cause::SynchronousStandbyMissing => Some(("missing", "nobody")),
        Cause::CommitsHeld => Some(("holder", "etl")),
        Cause::ProcessHalted if fault.name == FROZEN_WORKER => Some(("runs_on", "second")),
        Cause::ProcessHalted => Some(("runs_on", "primary")),
        Cause::TablesNotFollowed => Some(("tables", "public.added")),
        Cause::TablesNotPublished => Some(("tables", "public.t")),
        Cause::SlowConsumer if fault.name == BEHIND_RELAY => Some(("slot", "behind")),
        Cause::MissingIndex => Some(("table", "public.keyed")),
        Cause::RelayHalted => Some(("relay", "relay")),
        Cause::ApplyBlocked if fault.name == PREPARED_LOCK => Some(("gid", "stuck")),
        Cause::SlowConsumer | Cause::ApplyBlocked => Some(("slot", "second")),
        Cause::AsynchronousApplyCommit => Some(("subscription", "first")),
        Cause::RecoveryTarget => Some(("following", "standby")),
        Cause::StandbySettingsTooLow
        | Cause::RecoveryConflict
        | Cause::CleanupLock
        | Cause::ReplayHalted
        | Cause::ReceiverHalted => Some(("node", "standby")),
        _ => None,
    }
}

/// Injects a fault, asks doctor and measures meanwhile, does what doctor says, and heals the fault. Returns
/// a row of the results; its `wrong` is null if nothing was wrong.
pub fn trial(lab: &Lab, stage: &mut Stage, fault: &Fault, strength: Strength) -> Value {
    let mut probing = Probing::start(stage);
    let injected = fault.inject(lab, stage, strength).unwrap();
    let measuring = Measuring::start(fault, stage);
    probing.watched();
    let (code, json) = examine(stage, fault.seconds);
    let measured = measuring.end();
    let mut wrong = wrong(fault, &injected, code, &json);
    let quoted = quoted(&json, measured.fact);
    if wrong.is_none() {
        wrong = disagreement(quoted, &measured);
    }
    let mut shown = without_copies(&json);
    // Its lag is that behind the archive or the relay, which has no more.
    let fed_late = match fault.name {
        NOT_ARCHIVED | ARCHIVE_CONFLICT => "standby",
        RELAY_SLOT_DROPPED => "second (behind)",
        _ => "",
    };
    let links = shown["links"].as_array_mut().unwrap();
    links.retain(|link| link["replica"] != fed_late);
    let (lags, off) = probing.end().compare(&shown, fault.seconds);
    let wrong = wrong.or(off.map(|off| format!("{off}: {}", brief(&json))));
    if std::env::var_os("LOCKSTEP_SHOW").is_some() {
        println!("{}: {measured:?} {}", fault.name, brief(&json));
    }
    let (remedy, failed) = remedy::try_printed(stage, fault, injected, &json);
    let wrong = wrong.or(failed);
    let first = &json["findings"][0];
    json!({
        "case": fault.name,
        "variant": format!("{strength:?}").to_lowercase(),
        "round": 1,
        "right": u32::from(wrong.is_none()),
        "expected": fault.cause().id(),
        "found": causes(&json).first(),
        "explains": first["explains"],
        "lag_ms": first["lag_ms"],
        "figure": measured.fact,
        "quoted": quoted,
        "measured": measured.value,
        "lags": lags,
        "remedy": remedy,
        "wrong": wrong,
    })
}

/// A figure of the first finding.
fn quoted(json: &Value, name: &str) -> Option<f64> {
    let facts = json["findings"][0]["evidence"].as_array()?;
    let fact = facts.iter().find(|fact| fact["name"] == name)?;
    fact["value"].as_f64()
}

fn disagreement(quoted: Option<f64>, measured: &Measured) -> Option<String> {
    let Measured {
        fact, least, most, ..
    } = measured;
    let Some(quoted) = quoted else {
        return Some(format!("quotes no {fact}"));
    };
    (quoted < *least || quoted > *most).then(|| {
        format!(
            "{fact} is {quoted}, measured {} ({least} to {most})",
            measured.value
        )
    })
}
