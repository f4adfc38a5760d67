//! A program of ours as tests of its command line start it.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output};

use crate::for_tests::assert_recorded;

/// Environment variables that change defaults.
const DEFAULTS: [&str; 5] = [
    "PG",
    "LOCKSTEP_EXTENSION_STAGE",
    "BENCH_ROUNDS",
    "BENCH_SECONDS",
    "COLUMNS",
];

#[derive(Debug, Clone, Copy)]
pub struct TestProgram {
    pub name: &'static str,
    pub path: &'static str,
}

impl TestProgram {
    /// The program without anything from the environment that changes defaults.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.path);
        command.args(args);
        for name in DEFAULTS {
            command.env_remove(name);
        }
        command
    }

    pub fn output(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// The exit code of a failure, and the one line on standard error.
    pub fn failure(&self, args: &[&str]) -> (i32, String) {
        let output = self.output(args);
        let line = String::from_utf8(output.stderr).unwrap();
        assert_eq!(line.lines().count(), 1, "{args:?}: {line}");
        assert!(line.starts_with(&format!("{}: ", self.name)), "{line}");
        assert!(output.stdout.is_empty());
        (output.status.code().unwrap(), line)
    }

    /// Asserts that each is a usage error, and that the line that says so has the word.
    pub fn assert_usage_errors(&self, cases: &[(&[&str], &str)]) {
        for (args, word) in cases {
            let (code, line) = self.failure(args);
            assert_eq!(code, 2, "{args:?}: {line}");
            assert!(line.contains(word), "{args:?}: {line}");
        }
    }

    /// Asserts that the help of the commands is what the file holds; `UPDATE_SNAPSHOTS` records it.
    pub fn assert_help_is_as_recorded(&self, commands: &[&[&str]], path: &Path) {
        let mut text = String::new();
        for command in commands {
            let args = [command, &["--help"][..]].concat();
            let output = self.output(&args);
            assert!(output.status.success(), "{args:?}");
            text.push_str(&format!("$ {} {}\n", self.name, args.join(" ")));
            text.push_str(&String::from_utf8(output.stdout).unwrap());
            text.push('\n');
        }
        assert_recorded(path, &text);
    }

    /// Asserts that a result that cannot be written is an error, in one line.
    pub fn assert_full_disk_is_told(&self, commands: &[&[&str]]) {
        for args in commands {
            let full = File::options().write(true).open("/dev/full").unwrap();
            let ended = self.command(args).stdout(full).output().unwrap();
            let line = String::from_utf8(ended.stderr).unwrap();
            assert_eq!(ended.status.code(), Some(1), "{args:?}: {line}");
            let begin = format!("{}: cannot write to standard output: ", self.name);
            assert!(line.starts_with(&begin), "{args:?}: {line}");
            assert!(line.contains("No space left on device"), "{args:?}: {line}");
        }
    }

    /// The commands of which a file has the help, those of other programs as well.
    pub fn commands(&self, help: &Path) -> BTreeSet<String> {
        let text = fs::read_to_string(help).unwrap();
        let lines = text.lines().filter_map(|line| line.strip_prefix("$ "));
        let commands = lines.filter_map(|line| line.strip_suffix(" --help")?.split_once(' '));
        commands.map(|(_, command)| command.to_owned()).collect()
    }

    pub fn assert_version(&self, version: &str) {
        let output = self.output(&["--version"]);
        assert!(output.status.success());
        let said = String::from_utf8(output.stdout).unwrap();
        assert_eq!(said, format!("{} {version}\n", self.name));
    }
}
