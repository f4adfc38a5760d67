//! Finds the line of a server's log that says why the server did not start, and adds advice.

use crate::error::one_line;

/// The reason that `log` gives, and what to do about it if that is known.
pub(crate) fn reason(log: &str) -> Option<String> {
    let (level, text) = important(log)?;
    let advice = advice(text);
    let text = one_line(text);
    Some(match (advice, level) {
        (Some(advice), _) => format!("{text}; {advice}"),
        (None, _) => text,
    })
}

/// The first line that names a cause. The server reports a bad setting at level LOG, before a
/// FATAL that only says that the file contains errors. So a line with words of [`CAUSES`] wins
/// over the first FATAL.
fn important(log: &str) -> Option<(&'static str, &str)> {
    let message = |line: &'_ str| -> Option<(&'static str, usize)> {
        ["PANIC:", "FATAL:", "ERROR:", "LOG:"]
            .into_iter()
            .find_map(|level| Some((level, line.find(level)? + level.len())))
    };
    let messages = || {
        log.lines().filter_map(move |line| {
            let (level, start) = message(line)?;
            Some((level, line.get(start..)?.trim()))
        })
    };
    messages()
        .find(|(_, text)| CAUSES.iter().any(|(words, _)| text.contains(words)))
        .or_else(|| messages().find(|(level, _)| *level != "LOG:"))
        .or_else(|| {
            log.lines()
                .rev()
                .find(|line| !line.trim().is_empty())
                .map(|line| ("LOG:", line))
        })
}

fn advice(text: &str) -> Option<&'static str> {
    CAUSES
        .iter()
        .find(|(words, _)| text.contains(words))
        .map(|(_, advice)| *advice)
}

/// Words in the server's messages (LC_MESSAGES is C), each with what to do about it.
const CAUSES: [(&str, &str); 13] = [
    (
        "unrecognized configuration parameter",
        "correct the name of the setting or leave it out",
    ),
    (
        "invalid value for parameter",
        "correct the value of the setting",
    ),
    (
        "is outside the valid range for parameter",
        "correct the value of the setting",
    ),
    ("syntax error in file", "correct the setting"),
    (
        "could not access file",
        "build and install the library, or take it out of shared_preload_libraries",
    ),
    (
        "could not load library",
        "rebuild the library for this server version",
    ),
    (
        "incompatible library",
        "rebuild the library for this server version",
    ),
    (
        "missing magic block",
        "the file is not a PostgreSQL library; take it out of shared_preload_libraries",
    ),
    (
        ".lock\" already exists",
        "the port is in use: stop the server that uses it or choose another port",
    ),
    (
        "\"postmaster.pid\" already exists",
        "a server is running on this data directory: stop it first",
    ),
    (
        "could not bind Unix address",
        "the port is in use: stop the server that uses it or choose another port",
    ),
    (
        "could not map anonymous shared memory",
        "lower shared_buffers or free memory",
    ),
    (
        "No space left on device",
        "free disk space or set TMPDIR to a larger file system",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_is_found_with_advice() {
        let cases = [
            (
                "2026-01-01 LOG:  unrecognized configuration parameter \"no.such\" in file \"/x/lab.conf\" line 3\n2026-01-01 FATAL:  configuration file \"/x/lab.conf\" contains errors\n",
                "unrecognized configuration parameter \"no.such\"",
                "correct the name",
            ),
            (
                "2026 LOG:  starting PostgreSQL 15\n2026 FATAL:  could not access file \"nothere\": No such file or directory\n2026 LOG:  database system is shut down\n",
                "could not access file \"nothere\"",
                "shared_preload_libraries",
            ),
            (
                "FATAL:  lock file \"/s/.s.PGSQL.5433.lock\" already exists\nHINT:  Is another postmaster using socket file?\n",
                "lock file",
                "port is in use",
            ),
            (
                "FATAL:  something new\nLOG:  shut down\n",
                "something new",
                "",
            ),
            ("postgres: cannot execute\n", "cannot execute", ""),
        ];
        for (log, cause, advice) in cases {
            let line = reason(log).unwrap();
            assert!(line.contains(cause) && line.contains(advice), "{line}");
            assert!(!line.contains('\n'));
        }
        assert_eq!(reason("\n"), None);
    }
}
