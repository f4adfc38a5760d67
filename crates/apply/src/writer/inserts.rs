//! Rows to insert: many with COPY, few with one statement.

use std::sync::Arc;

use super::given::after;
use super::{COPY_BYTES, COPY_FROM, COPY_FROM_BYTES, Writer};
use crate::arrays::copy_line;
use crate::binary::{self, Form};
use crate::row::RowRef;
use crate::statements::Verb;
use crate::table::Table;

impl Writer {
    /// Inserts rows.
    pub(super) fn insert(
        &mut self,
        table: &Arc<Table>,
        rows: &[RowRef<'_>],
    ) -> lockstep_client::Result<()> {
        if table.written().next().is_none() {
            let (table, rows) = (table.name.sql(), rows.len());
            return self.connection.execute(&format!(
                "INSERT INTO {table} SELECT FROM pg_catalog.generate_series(1, {rows})"
            ));
        }
        let bytes = rows.iter().map(|row| row.size());
        if rows.len() >= COPY_FROM || bytes.sum::<usize>() >= COPY_FROM_BYTES {
            return self.copy(table, rows);
        }
        let rows: Vec<_> = rows.iter().copied().map(after).collect();
        self.run(table, Verb::Insert, &rows).map(drop)
    }

    /// Copies in binary form as many rows as have one, and the rest as text.
    fn copy(&mut self, table: &Table, rows: &[RowRef<'_>]) -> lockstep_client::Result<()> {
        let copied = match binary::forms(table) {
            Some(forms) => self.copy_binary(table, &forms, rows)?,
            None => 0,
        };
        match rows.split_at_checked(copied) {
            Some((_, left)) if !left.is_empty() => self.copy_text(table, left),
            _ => Ok(()),
        }
    }

    /// Copies rows up to the first that has no binary form. Returns how many.
    fn copy_binary(
        &mut self,
        table: &Table,
        forms: &[(usize, Form)],
        rows: &[RowRef<'_>],
    ) -> lockstep_client::Result<usize> {
        let mut piece = Vec::with_capacity(2 * COPY_BYTES);
        piece.extend_from_slice(binary::HEADER);
        let mut copied = binary::fill(forms, rows, COPY_BYTES, &mut piece);
        if copied == 0 {
            return Ok(0);
        }
        let mut copy = self.connection.copy_in(&table.copy_binary())?;
        let mut sent = 0;
        loop {
            copy.send(&piece)?;
            sent += piece.len() as u64;
            piece.clear();
            let left = rows.get(copied..).unwrap_or_default();
            match binary::fill(forms, left, COPY_BYTES, &mut piece) {
                0 => break,
                more => copied += more,
            }
        }
        copy.send(&binary::TRAILER)?;
        copy.finish()?;
        self.sent_bytes += sent + binary::TRAILER.len() as u64;
        Ok(copied)
    }

    fn copy_text(&mut self, table: &Table, rows: &[RowRef<'_>]) -> lockstep_client::Result<()> {
        let written: Vec<usize> = table.written().map(|(place, _)| place).collect();
        let mut copy = self.connection.copy_in(&table.copy())?;
        let mut lines = Vec::with_capacity(2 * COPY_BYTES);
        let mut sent = 0;
        let mut send = |lines: &mut Vec<u8>| -> lockstep_client::Result<()> {
            if lines.len() >= COPY_BYTES {
                copy.send(lines)?;
                sent += lines.len() as u64;
                lines.clear();
            }
            Ok(())
        };
        for row in rows {
            copy_line(*row, &written, &mut lines, &mut send)?;
        }
        copy.send(&lines)?;
        copy.finish()?;
        self.sent_bytes += sent + lines.len() as u64;
        Ok(())
    }
}
