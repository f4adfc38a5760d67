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
/// with as many blanks. A word that is longer than a line is not broken.
pub fn wrapped(lead: &str, words: &str, columns: usize) -> Vec<String> {
    let indent = " ".repeat(lead.chars().count());
    let mut lines = Vec::new();
    let mut line = lead.to_owned();
    let mut empty = true;
    for word in words.split_whitespace() {
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
    fn tables_are_aligned() {
        let rows = vec![
            vec!["".to_owned(), "stock".to_owned()],
            vec!["lag".to_owned(), "1 s".to_owned()],
        ];
        assert_eq!(table(&rows), ["      stock", "lag     1 s"]);
        assert!(table(&[]).is_empty());
    }
}
