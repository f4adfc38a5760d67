//! Figures and tables for people, and words in lines.

/// Milliseconds, in the unit that suits.
pub fn ms(value: f64) -> String {
    match value {
        v if v < 0.05 => "0 ms".to_owned(),
        v if v < 9.95 => format!("{v:.1} ms"),
        v if v < 999.5 => format!("{v:.0} ms"),
        v => format!("{:.1} s", v / 1000.0),
    }
}

/// A count or a rate, with separators for thousands.
pub fn count(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    if value < -0.5 {
        format!("-{text}")
    } else {
        text
    }
}

/// One digit after the point.
pub fn tenths(value: f64) -> String {
    format!("{value:.1}")
}

/// Two digits.
pub fn hundredths(value: f64) -> String {
    format!("{value:.2}")
}

/// Three digits.
pub fn thousandths(value: f64) -> String {
    format!("{value:.3}")
}

/// Whole percents.
pub fn percent(value: f64) -> String {
    format!("{value:.0} %")
}

/// How much lag grows in a second.
pub fn slope(ms_per_s: f64) -> String {
    // Minus zero is shown as zero.
    format!(
        "{:+.1} ms/s",
        if ms_per_s.abs() < 0.05 { 0.0 } else { ms_per_s }
    )
}

pub fn duration(seconds: u64) -> String {
    match (seconds / 60, seconds % 60) {
        (0, s) => format!("{s} s"),
        (m, 0) => format!("{m} min"),
        (m, s) => format!("{m} min {s} s"),
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures() {
        assert_eq!(ms(0.0), "0 ms");
        assert_eq!(ms(4.68), "4.7 ms");
        assert_eq!(ms(412.3), "412 ms");
        assert_eq!(ms(12_345.0), "12.3 s");
        assert_eq!(count(0.0), "0");
        assert_eq!(count(999.6), "1,000");
        assert_eq!(count(1_234_567.0), "1,234,567");
        assert_eq!(count(-1234.0), "-1,234");
        assert_eq!(slope(-0.01), "+0.0 ms/s");
        assert_eq!(slope(801.25), "+801.2 ms/s");
        assert_eq!(duration(59), "59 s");
        assert_eq!(duration(120), "2 min");
        assert_eq!(duration(185), "3 min 5 s");
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

    #[test]
    fn lines_are_wrapped_and_indented() {
        let lines = wrapped("   Do: ", &"word ".repeat(40), 80);
        assert!(lines.len() > 2);
        assert!(lines.iter().all(|line| line.chars().count() <= 80));
        assert!(lines[0].starts_with("   Do: word") && lines[1].starts_with("       word"));
        assert_eq!(wrapped("- ", &"x".repeat(200), 80).len(), 1);
        assert_eq!(wrapped("", "", 80), [""]);
    }
}
