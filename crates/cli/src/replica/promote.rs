//! `lockstep replica promote`

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use lockstep_replica::lifecycle::promote::{Promote, Promoted, promote};
use lockstep_replica::lifecycle::promotion::Wish;
use lockstep_replica::state::{Promotion, Replica};
use lockstep_service::exit::Failure;
use lockstep_service::sanitize::sanitize;
use lockstep_service::words::output;
use serde_json::{Value, json};

use super::{ReplicaArgs, failed, replica_name, switchover};

/// `lockstep replica promote`
#[derive(Debug, Args)]
pub struct PromoteArgs {
    #[command(flatten)]
    replica: ReplicaArgs,
    /// Promote although the source is gone: with what the target and the spool have of it
    #[arg(long)]
    with_data_loss: bool,
    /// The spool is gone, too: promote without what only it had
    #[arg(long, requires = "with_data_loss")]
    without_spool: bool,
    /// Most seconds to wait until the target has what the source, or the spool, still has
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=604_800))]
    wait: u32,
    /// Keep a way back: a switchover without a pooler, after which the source takes no writes
    ///
    /// NAME is the replica from the target to the source [default: NAME_back]. lockstep replica switchover
    /// goes on with it, and has more options, --max-pause and --verify among them.
    #[arg(long, value_name = "NAME", num_args = 0..=1, require_equals = true)]
    #[arg(value_parser = replica_name, conflicts_with = "with_data_loss")]
    reverse: Option<Option<String>>,
}

pub fn run(args: &PromoteArgs) -> Result<()> {
    let (target, source) = args.replica.ends()?;
    if let Some(way_back) = &args.reverse {
        let ends = (args.replica.name.clone(), target, source);
        return switchover::directly(ends, way_back.as_ref(), args.wait);
    }
    let what = Promote {
        name: args.replica.name.clone(),
        target,
        source,
        wish: Wish {
            with_data_loss: args.with_data_loss,
            without_spool: args.without_spool,
        },
        patience: Duration::from_secs(args.wait.into()),
    };
    let say = |line: &str| output::print(&sanitize(line));
    let promoted = promote(&what, &mut |words| say(words)).map_err(failed)?;
    lines(&what.name, &promoted)
        .iter()
        .for_each(|line| say(line));
    let lacks: Vec<_> = (promoted.lacks.into_iter())
        .chain(promoted.read_only)
        .collect();
    match lacks.is_empty() {
        true => Ok(()),
        false => Err(Failure::DataMismatch(format!(
            "replica {} is promoted, and not everything is as it should be: {}",
            what.name,
            lacks.join("; ")
        ))
        .into()),
    }
}

/// What is to be known of a promotion.
fn lines(name: &str, promoted: &Promoted) -> Vec<String> {
    let mut lines = vec![match promoted.is_again {
        true => format!(
            "replica {name} was promoted before: {}",
            words(&promoted.promotion)
        ),
        false => format!("replica {name} is promoted: {}", words(&promoted.promotion)),
    }];
    if let Some(end) = promoted.source_end {
        lines.push(format!(
            "the source's WAL went up to {end} when something was last heard of it: what it committed between \
             these positions is missing"
        ));
    }
    lines.extend(promoted.notes.clone());
    match &promoted.left {
        None => lines.push("the source has no slot and no publication of it any more".to_owned()),
        Some((replica, commands)) => {
            lines.push(match promoted.has_more {
                true => has_more(replica),
                false => left(replica),
            });
            lines.extend(commands.clone());
        }
    }
    lines
}

/// What a source keeps that has more than the target.
fn has_more(replica: &Replica) -> String {
    format!(
        "the source keeps slot {}, with what the target lacks, and publication {}, which nobody reads any more; \
         lockstep replica drop {} removes them, as do, in its database {}:",
        replica.slot, replica.publication, replica.name, replica.source_database
    )
}

/// What a source that was not there keeps.
fn left(replica: &Replica) -> String {
    format!(
        "the source keeps slot {}, with all WAL since then, and publication {}; if it comes back, write nothing \
         there, and run in its database {}:",
        replica.slot, replica.publication, replica.source_database
    )
}

/// What the target has, in words.
pub fn words(promotion: &Promotion) -> String {
    let has = match promotion.lsn {
        Some(lsn) => {
            format!("the target has everything that the source had committed before {lsn}")
        }
        None => "it is not known yet where the target stands".to_owned(),
    };
    let newest = promotion.commit_time.as_ref();
    let newest = newest.map_or_else(String::new, |time| {
        format!(", the newest transaction on the target being of {time}")
    });
    let lost = match (promotion.loses, promotion.lsn) {
        (true, Some(_)) => ", and nothing that was committed there later",
        (true, None) => ", nor what it lacks",
        (false, _) => "",
    };
    let at = promotion.at.as_ref();
    let at = at.map_or_else(String::new, |at| {
        format!("; since {at} it is a database of its own")
    });
    format!("{has}{lost}{newest}{at}")
}

pub fn to_json(promotion: &Promotion) -> Value {
    json!({
        "lsn": promotion.lsn.map(|lsn| lsn.to_string()),
        "at": promotion.at,
        "newest_commit": promotion.commit_time,
        "with_data_loss": promotion.loses,
        "left_on_source": promotion.is_left,
    })
}
