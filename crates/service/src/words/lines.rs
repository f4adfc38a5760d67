//! Tables, and words in lines.

/// Lines of a table: the first column is aligned left, the others right.
pub fn table(rows: &[Vec<String>]) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            rows.iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        })
        .collect();
    rows.iter()
        .map(|row| {
            let cells: Vec<String> = row
                .iter()
                .zip(&widths)
                .enumerate()
                .map(|(column, (cell, &width))| match column {
                    0 => format!("{cell:<width$}"),
                    _ => format!("{cell:>width$}"),
                })
                .collect();
            cells.join("   ").trim_end().to_owned()
        })
        .collect()
}

/// Breaks words into lines of at most `columns`. The first line begins with `lead`, the others
/// with as many blanks. A word that is longer than a line is not broken, and neither is what stands
/// in quotes: a line break in a literal is part of the literal.
pub fn wrapped(lead: &str, words: &str, columns: usize) -> Vec<String> {
    let indent = " ".repeat(lead.chars().count());
    let mut lines = Vec::new();
    let mut line = lead.to_owned();
    let mut empty = true;
    for word in unbroken(words) {
        let length = line.chars().count() + usize::from(!empty) + word.chars().count();
        if !empty && length > columns {
            lines.push(std::mem::replace(&mut line, indent.clone()));
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line.push_str(word);
        empty = false;
    }
    lines.push(line);
    lines
}

/// Words, with all that stands in quotes in one of them.
fn unbroken(text: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (mut end, mut before) = (0, None);
        while let Some(next) = rest.get(end..).filter(|next| !next.is_empty()) {
            let char = next.chars().next().filter(|char| !char.is_whitespace());
            let Some(char) = char else { break };
            end += quoted(before, next).unwrap_or(char.len_utf8());
            before = Some(char);
        }
        let (piece, after) = rest.split_at(end);
        pieces.push(piece);
        rest = after.trim_start();
    }
    pieces
}

/// Bytes of the quoted text that this begins with, if it does so: a quote after a letter is an
/// apostrophe, and a doubled one is part of the text.
fn quoted(before: Option<char>, text: &str) -> Option<usize> {
    let quote = text.chars().next().filter(|it| ['\'', '"'].contains(it))?;
    if before.is_some_and(char::is_alphanumeric) {
        return None;
    }
    let mut chars = text.char_indices().skip(1).peekable();
    while let Some((at, char)) = chars.next() {
        if char == '\n' {
            return None;
        }
        if char == quote && chars.next_if(|(_, next)| *next == quote).is_none() {
            return Some(at + 1);
        }
    }
    None
}

/// Cuts a name to at most `most` characters. The middle is left out, since names often differ at their ends.
pub fn cut_name(name: &str, most: usize) -> String {
    let length = name.chars().count();
    if length <= most {
        return name.to_owned();
    }
    let end = most.saturating_sub(1) / 2;
    let begin = most.saturating_sub(end + 1);
    let first = name.chars().take(begin);
    let last = name.chars().skip(length - end);
    first.chain(['…']).chain(last).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cut_in_the_middle() {
        assert_eq!(cut_name("subscriber10", 12), "subscriber10");
        assert_eq!(cut_name("a_very_long_slot_name_10", 12), "a_very…me_10");
        assert_eq!(cut_name("über_größer", 5), "üb…er");
        assert_eq!(cut_name("abc", 1), "…");
    }

    #[test]
    fn lines_are_wrapped_and_indented() {
        let lines = wrapped("   Do: ", &"word ".repeat(40), 80);
        assert!(lines.len() > 2);
        assert!(lines.iter().all(|line| line.chars().count() <= 80));
        assert!(lines[0].starts_with("   Do: word") && lines[1].starts_with("       word"));
        assert_eq!(wrapped("- ", &"x".repeat(200), 80).len(), 1);
        assert_eq!(wrapped("", "", 80), [""]);
    }

    #[test]
    fn what_is_quoted_stays_in_one_line() {
        let conninfo = format!("host=db9  port=5432 {}", "option=''a b'' ".repeat(9));
        let sql =
            format!("ALTER SYSTEM SET primary_conninfo = '{conninfo}'; SELECT pg_reload_conf();");
        let words = format!("on the server's node: {sql} if it is the standbys' own, and so on");
        let lines = wrapped("   Do: ", &words, 80);
        let whole = format!("'{conninfo}';");
        assert!(lines.iter().any(|line| line.contains(&whole)), "{lines:#?}");
        let others = lines.iter().filter(|line| !line.contains(&whole));
        assert!(others.clone().count() > 1);
        assert!(
            others.clone().all(|line| line.chars().count() <= 80),
            "{lines:#?}"
        );
        let lines = wrapped(
            "",
            &format!("DROP SUBSCRIPTION \"a {}\";", "b ".repeat(60)),
            80,
        );
        assert!(
            lines[1].starts_with("\"a b") && lines[1].ends_with("b \";"),
            "{lines:#?}"
        );
        // One quote is an apostrophe.
        let lines = wrapped("", &format!("'tis {}", "word ".repeat(40)), 80);
        assert!(
            lines.iter().all(|line| line.chars().count() <= 80),
            "{lines:#?}"
        );
        assert_eq!(
            wrapped("", "set = '' and  '' too", 8),
            ["set = ''", "and ''", "too"]
        );
    }

    #[test]
    fn tables_are_aligned() {
        let rows = vec![
            vec!["".to_owned(), "stock".to_owned()],
            vec!["lag".to_owned(), "1 s".to_owned()],
        ];
        assert_eq!(table(&rows), ["      stock", "lag     1 s"]);
        assert!(table(&[]).is_empty());
    }
}
