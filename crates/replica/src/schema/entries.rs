//! The entries of a dump, each as SQL.
//!
//! If several jobs of pg_restore meet errors, they print no error code, and not whose errors they are.
//! So what could not be made is found out with each entry's own SQL.

/// pg_restore's last words if it has gone on after errors.
const WENT_ON: &str = "errors ignored on restore: ";

/// The words that hide commands of psql in a script from whoever does not know the key after them.
const RESTRICT: &str = "\\restrict ";

/// An entry of a dump.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The kind in words of pg_dump, such as `FK CONSTRAINT`.
    pub kind: String,
    /// `-` for what has no schema.
    pub schema: String,
    /// The name. Of what belongs to a table: the table's name, a space, and its own.
    pub tag: String,
    /// All that makes it, settings first.
    pub script: String,
    /// The script without settings, for people.
    pub command: String,
}

/// pg_restore has gone on after errors, by its words, and so has tried each entry.
pub fn went_on(words: &str) -> bool {
    words.contains(WENT_ON)
}

/// The entries' numbers, in an order in which each comes after those that it needs. `list` is what
/// `pg_restore --list` prints.
pub fn numbers(list: &str) -> Vec<u32> {
    list.lines()
        .filter_map(|line| line.split_once(';')?.0.parse().ok())
        .collect()
}

/// A line of the list is that of an event trigger of a replica, which is the source's alone.
pub fn is_of_replica(line: &str) -> bool {
    let name = line
        .split_once(" EVENT TRIGGER - lockstep_")
        .map(|(_, rest)| rest);
    let name = name.and_then(|rest| rest.split_whitespace().next());
    let ends = ["_0e", "_0r", "_1d", "_2d", "_1s", "_2s"];
    let number = name.and_then(|name| ends.iter().find_map(|end| name.strip_suffix(end)));
    let number = number.and_then(|name| name.rsplit_once('_'));
    number.is_some_and(|(_, digits)| {
        digits.len() == 8 && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
    })
}

/// An entry as pg_restore prints it alone as a script. None if it is nothing that can be made.
pub fn parsed(printed: &str) -> Option<Entry> {
    let key = printed
        .lines()
        .find_map(|line| line.strip_prefix(RESTRICT))
        .map(str::to_owned);
    let is_psql = |line: &str| {
        let of = |key: &str| {
            line.strip_suffix(key)
                .is_some_and(|it| it.ends_with("restrict "))
        };
        line.starts_with('\\') && key.as_deref().is_some_and(of)
    };
    let lines: Vec<_> = printed.lines().filter(|line| !is_psql(line)).collect();
    // Only settings come before the first line of this kind, and pg_dump makes one line of each name.
    let heading = lines
        .iter()
        .position(|line| line.starts_with("-- Name: ") && line.contains("; Type: "))?;
    let words = lines.get(heading)?.strip_prefix("-- Name: ")?;
    let (words, _) = words.rsplit_once("; Owner: ")?;
    let (words, schema) = words.rsplit_once("; Schema: ")?;
    let (tag, kind) = words.rsplit_once("; Type: ")?;
    // The heading ends with a line `--`, and so does the script.
    let after = lines.get(heading + 2..)?;
    let end = after
        .iter()
        .rposition(|line| *line == "-- PostgreSQL database dump complete")
        .map_or(after.len(), |place| place.saturating_sub(1));
    let command = after.get(..end)?.join("\n").trim().to_owned();
    // The words are UTF-8 by now, as the session's are.
    let is_encoding = |line: &str| line.starts_with("SET client_encoding = ");
    let settings = lines
        .get(..heading)?
        .iter()
        .filter(|line| !is_encoding(line));
    let script: Vec<_> = settings.chain(lines.get(heading..)?).copied().collect();
    Some(Entry {
        kind: kind.to_owned(),
        schema: schema.to_owned(),
        tag: tag.to_owned(),
        script: script.join("\n"),
        command,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_have_numbers_in_the_order_of_the_dump() {
        let list =
            ";\n; Archive\n;\n3196; 2606 16403 FK CONSTRAINT\n7; 1 2 INDEX\n12; 1259 9 INDEX i\n";
        assert_eq!(numbers(list), [3196, 7, 12]);
        assert!(went_on(
            "pg_restore: warning: errors ignored on restore: 1\n"
        ));
        assert!(!went_on("pg_restore: error: connection to server failed"));
    }

    #[test]
    fn event_triggers_of_replicas_are_known() {
        for (line, ours) in [
            (
                "3196; 3466 16403 EVENT TRIGGER - lockstep_app_0a1b2c3d_2d postgres",
                true,
            ),
            (
                "3196; 3466 16403 EVENT TRIGGER - lockstep_of_mine postgres",
                false,
            ),
            ("3196; 3466 16403 EVENT TRIGGER - mine postgres", false),
            (
                "3196; 2606 16403 TABLE public lockstep_app_0a1b2c3d_2d postgres",
                false,
            ),
        ] {
            assert_eq!(is_of_replica(line), ours, "{line}");
        }
    }

    #[test]
    fn an_entry_is_its_heading_and_its_command() {
        let printed = "\\restrict kEy1\n\nSET statement_timeout = 0;\nSET client_encoding = 'LATIN1';\n\n--\n\
            -- Name: c d; Type: x c_p; Type: FK CONSTRAINT; Schema: A; b; Owner: -\n--\n\n\
            ALTER TABLE ONLY \"A; b\".c\n    ADD CONSTRAINT x CHECK (v <> '\n\\restrict other');\n\n\n\
            --\n-- PostgreSQL database dump complete\n--\n\n\\unrestrict kEy1\n\n";
        let entry = parsed(printed).unwrap();
        assert_eq!(
            (
                entry.kind.as_str(),
                entry.schema.as_str(),
                entry.tag.as_str()
            ),
            ("FK CONSTRAINT", "A; b", "c d; Type: x c_p")
        );
        let command =
            "ALTER TABLE ONLY \"A; b\".c\n    ADD CONSTRAINT x CHECK (v <> '\n\\restrict other');";
        assert_eq!(entry.command, command);
        assert!(entry.script.starts_with("\nSET statement_timeout"));
        assert!(!entry.script.contains("kEy1") && !entry.script.contains("LATIN1"));
        assert_eq!(parsed("SET statement_timeout = 0;\n"), None);
    }
}
