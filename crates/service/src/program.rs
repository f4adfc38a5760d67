//! What `lockstep` and `lockstep-lab` do alike: the command line, and the line about a failure.

use std::error::Error;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::iter;
use std::path::Path;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Parser, ValueEnum};

use crate::exit;
use crate::sanitize::sanitize;
use crate::words::output;

/// Shells that commands can be completed in.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// One of the two programs.
#[derive(Debug, Clone, Copy)]
pub struct Program {
    pub name: &'static str,
    /// The definition of its command line.
    pub definition: fn() -> Command,
    /// The other program, and those of its commands that this one has not: as they are typed here, with
    /// those of versions when there was one program, and as they are typed there.
    pub other: &'static str,
    pub elsewhere: &'static [(&'static str, &'static str)],
}

/// Writes one line of a program to standard error. The line is sanitized, since it may hold text of
/// servers.
pub fn complain(program: &str, message: &str) {
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    let _ = writeln!(io::stderr(), "{program}: {}", sanitize(&line));
}

impl Program {
    /// Parses the command line. Prints help and version, or one line about an error.
    pub fn parse<C: Parser>(&self) -> Result<C, ExitCode> {
        if let Some(line) = self.told_elsewhere(&typed().collect::<Vec<_>>()) {
            self.complain(&line);
            return Err(ExitCode::from(exit::USAGE));
        }
        C::try_parse().map_err(|error| {
            if matches!(
                error.kind(),
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
            ) {
                output::note(error.print());
                return self.done(ExitCode::SUCCESS);
            }
            self.complain(&self.usage_line(&error, typed()));
            ExitCode::from(exit::USAGE)
        })
    }

    /// One line about a command that the other program has.
    pub fn told_elsewhere(&self, args: &[String]) -> Option<String> {
        let typed = |command: &str| {
            let mut words = command.split(' ').zip(args);
            args.len() >= command.split(' ').count() && words.all(|(word, arg)| word == arg)
        };
        let (here, there) = self.elsewhere.iter().find(|(here, _)| typed(here))?;
        let (name, other) = (self.name, self.other);
        Some(format!(
            "{name} {here} is {other} {there}, of the package {other}"
        ))
    }

    /// Writes one line to standard error; see [`complain`].
    pub fn complain(&self, message: &str) {
        complain(self.name, message);
    }

    /// Writes one line about an error to standard error, and returns the exit code.
    pub fn failed(&self, error: &(dyn Error + 'static), code: u8) -> ExitCode {
        self.complain(&words(error));
        self.done(ExitCode::from(code))
    }

    /// The exit code, unless something that the program printed could not be written.
    pub fn done(&self, code: ExitCode) -> ExitCode {
        match output::end() {
            Ok(()) => code,
            Err(error) => {
                self.complain(&format!("cannot write to standard output: {error}"));
                ExitCode::from(exit::FAILED)
            }
        }
    }

    /// The script that makes a shell complete the program's commands and options.
    pub fn completion(&self, shell: Shell) -> Vec<u8> {
        let shell = match shell {
            Shell::Bash => clap_complete::Shell::Bash,
            Shell::Zsh => clap_complete::Shell::Zsh,
            Shell::Fish => clap_complete::Shell::Fish,
        };
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut (self.definition)(), self.name, &mut script);
        script
    }

    /// Writes man pages, a file for each command and for each of its subcommands.
    pub fn write_man_pages(&self, folder: &Path) -> io::Result<()> {
        std::fs::create_dir_all(folder)?;
        clap_mangen::generate_to((self.definition)(), folder)
    }

    /// One line about an error in the arguments: the first paragraph of the parser's message, which
    /// says what is wrong and with which argument, what may have been meant, and whose help says more.
    pub fn usage_line(&self, error: &clap::Error, args: impl Iterator<Item = String>) -> String {
        let text = error.render().to_string();
        let wrong = match error.kind() {
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => "a command is missing",
            _ => text.split("\n\n").next().unwrap_or_default().trim(),
        };
        let wrong = wrong.strip_prefix("error: ").unwrap_or(wrong);
        let meant = match meant(error) {
            Some(meant) => format!("; did you mean {meant}?"),
            None => String::new(),
        };
        let subcommand = self.subcommand(args);
        format!("{wrong}{meant}; see {}{subcommand} --help", self.name)
    }

    /// The subcommands at the beginning of the arguments, each with a space before it.
    fn subcommand(&self, args: impl Iterator<Item = String>) -> String {
        let mut command = (self.definition)();
        let mut words = String::new();
        for arg in args {
            let Some(next) = command.find_subcommand(&arg).cloned() else {
                break;
            };
            let _ = write!(words, " {arg}");
            command = next;
        }
        words
    }
}

/// The arguments, up to one that is no text.
fn typed() -> impl Iterator<Item = String> {
    let args = std::env::args_os().skip(1);
    args.map_while(|arg| arg.into_string().ok())
}

/// What is spelt most like the misspelt command, option or value.
fn meant(error: &clap::Error) -> Option<String> {
    let kinds = [
        ContextKind::SuggestedSubcommand,
        ContextKind::SuggestedArg,
        ContextKind::SuggestedValue,
    ];
    match kinds.iter().find_map(|kind| error.get(*kind))? {
        ContextValue::String(one) => Some(one.clone()),
        ContextValue::Strings(all) => all.first().cloned(),
        _ => None,
    }
}

/// An error and its sources, each of them once: some name theirs already.
fn words(error: &(dyn Error + 'static)) -> String {
    let mut words = String::new();
    for cause in iter::successors(Some(error), |&error| error.source()) {
        let cause = cause.to_string();
        if words.is_empty() {
            words = cause;
        } else if !words.ends_with(&cause) {
            words = format!("{words}: {cause}");
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An error, and the one under it.
    #[derive(Debug, thiserror::Error)]
    #[error("{words}")]
    struct Over {
        words: &'static str,
        source: io::Error,
    }

    #[test]
    fn sources_are_named_once() {
        for (over, expected) in [
            ("demo", "demo: no such file"),
            ("demo: no such file", "demo: no such file"),
        ] {
            let error = Over {
                words: over,
                source: io::Error::other("no such file"),
            };
            assert_eq!(words(&error), expected);
        }
    }
}
