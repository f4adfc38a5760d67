//! Arguments that the demo and several benchmarks have.

use std::fmt::{self, Display, Formatter};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, Args, value_parser};
use lockstep_lab::package::Major;

use crate::trial::Variant;

/// Place in help of options that come after a benchmark's own, and before `--help`.
const LAST: usize = 900;

/// Which servers to use.
#[derive(Debug, Clone, Args)]
pub struct ServerArgs {
    /// PostgreSQL major, 15 to 19, from /usr/lib/postgresql
    #[arg(
        long,
        value_name = "MAJOR",
        env = "PG",
        hide_env_values = true,
        default_value = "15",
        display_order = LAST + 1
    )]
    pub pg: Major,
    /// Staged extension: where `make install DESTDIR=…` put it [default: build/pgMAJOR/stage]
    #[arg(
        long,
        value_name = "FOLDER",
        env = "LOCKSTEP_EXTENSION_STAGE",
        hide_env_values = true,
        display_order = LAST + 2
    )]
    pub extension_stage: Option<PathBuf>,
}

impl ServerArgs {
    /// The staged extension's folder.
    pub fn stage(&self) -> PathBuf {
        self.extension_stage
            .clone()
            .unwrap_or_else(|| PathBuf::from(format!("build/pg{}/stage", self.pg)))
    }
}

/// Rounds of a benchmark, its server, and the folder of its results.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    // Help and default are the benchmark's: see `rounds`.
    #[arg(
        long,
        value_name = "N",
        env = "BENCH_ROUNDS",
        hide_env_values = true,
        default_value_t = 1,
        value_parser = value_parser!(u32).range(1..=100)
    )]
    pub rounds: u32,
    // Help is the benchmark's: see `writes`.
    #[arg(long, value_name = "FOLDER", default_value = "bench/results", display_order = LAST)]
    pub results: PathBuf,
    #[command(flatten)]
    pub server: ServerArgs,
}

/// The options that every benchmark's command begins with.
impl Display for RunArgs {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "--pg {} --rounds {}", self.server.pg, self.rounds)
    }
}

/// How long a benchmark measures.
#[derive(Debug, Clone, Args)]
pub struct SecondsArgs {
    // Help, default and least are the benchmark's: see `seconds`.
    #[arg(
        long,
        value_name = "SECONDS",
        env = "BENCH_SECONDS",
        hide_env_values = true,
        default_value_t = 1
    )]
    pub seconds: u32,
}

impl SecondsArgs {
    pub fn length(&self) -> Duration {
        Duration::from_secs(self.seconds.into())
    }
}

/// Which of stock and Lockstep a benchmark runs.
#[derive(Debug, Clone, Args)]
pub struct VariantsArgs {
    /// Variants to run, separated by commas
    #[arg(
        long,
        value_enum,
        value_name = "VARIANTS",
        value_delimiter = ',',
        default_values_t = [Variant::Stock, Variant::Lockstep]
    )]
    pub variants: Vec<Variant>,
}

impl VariantsArgs {
    pub fn has(&self, variant: Variant) -> bool {
        self.variants.contains(&variant)
    }
}

impl Display for VariantsArgs {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&joined(self.variants.iter().map(|variant| variant.name())))
    }
}

/// Help and default of `--rounds`.
pub fn rounds(help: &'static str, default: &'static str) -> impl Fn(Arg) -> Arg {
    move |arg| arg.help(help).default_value(default)
}

/// Help, default and smallest value of `--seconds`.
pub fn seconds(help: &'static str, default: &'static str, least: i64) -> impl Fn(Arg) -> Arg {
    let range = value_parser!(u32).range(least..=3600);
    move |arg| {
        let arg = arg.help(help).default_value(default);
        arg.value_parser(range)
    }
}

/// Help of `--results`, for a benchmark that writes `files`.
pub fn writes(files: &'static str) -> impl Fn(Arg) -> Arg {
    move |arg| arg.help(format!("Folder for {files}"))
}

/// Reads NAME=VALUE.
pub fn setting(text: &str) -> Result<(String, String), String> {
    let valid = |name: &str| {
        !name.is_empty()
            && name
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.')
    };
    match text.split_once('=') {
        Some((name, value)) if valid(name) => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write it as NAME=VALUE".to_owned()),
    }
}

/// What a row says of settings given on the command line, which only Lockstep's standby has.
pub fn settings_text(variant: Variant, set: &[(String, String)]) -> Option<String> {
    if variant == Variant::Stock || set.is_empty() {
        return None;
    }
    let settings: Vec<_> = set.iter().map(|(n, v)| format!("{n}={v}")).collect();
    Some(settings.join(" "))
}

/// Settings as options of a command.
pub fn set_options(set: &[(String, String)]) -> String {
    set.iter().map(|(n, v)| format!(" --set {n}={v}")).collect()
}

/// Several values of one option.
pub fn joined<T: ToString>(values: impl IntoIterator<Item = T>) -> String {
    let values: Vec<String> = values.into_iter().map(|value| value.to_string()).collect();
    values.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_name_and_value() {
        assert_eq!(
            setting("lockstep.read_throttle=off").unwrap(),
            ("lockstep.read_throttle".to_owned(), "off".to_owned())
        );
        assert_eq!(setting("a=b=c").unwrap().1, "b=c");
        for text in ["", "=x", "name", "bad name=x", "a'b=x"] {
            assert!(setting(text).is_err(), "{text}");
        }
    }
}
