//! Arguments that the demo and several benchmarks have.

use std::path::PathBuf;

use clap::{Arg, Args};
use lockstep_lab::package::Major;

use crate::trial::Variant;

/// Which servers to use.
#[derive(Debug, Clone, Args)]
pub struct ServerArgs {
    /// PostgreSQL major, 15 to 19, from /usr/lib/postgresql
    #[arg(
        long,
        value_name = "MAJOR",
        env = "PG",
        hide_env_values = true,
        default_value = "15"
    )]
    pub pg: Major,
    /// Staged extension: where `make install DESTDIR=…` put it [default: build/pgMAJOR/stage]
    #[arg(
        long,
        value_name = "FOLDER",
        env = "LOCKSTEP_EXTENSION_STAGE",
        hide_env_values = true
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

/// Where a benchmark runs, and where its results go.
#[derive(Debug, Clone, Args)]
pub struct PlaceArgs {
    // Each benchmark says which files it writes: see `writes`.
    #[arg(long, value_name = "FOLDER", default_value = "bench/results")]
    pub results: PathBuf,
    #[command(flatten)]
    pub server: ServerArgs,
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
