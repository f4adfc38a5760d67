//! Rows to insert: many with COPY, few with one statement.

use std::sync::Arc;

use super::given::after;
use super::{COPY_BYTES, COPY_FROM, COPY_FROM_BYTES, Writer};
use crate::arrays::copy_line;
use crate::row::OwnedRow;
use crate::statements::Verb;
use crate::table::Table;

impl Writer {
    /// Inserts rows.
    pub(super) fn insert(
        &mut self,
        table: &Arc<Table>,
        rows: &[&OwnedRow],
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

    fn copy(&mut self, table: &Table, rows: &[&OwnedRow]) -> lockstep_client::Result<()> {
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
            copy_line(row, &written, &mut lines, &mut send)?;
        }
        copy.send(&lines)?;
        copy.finish()?;
        self.sent_bytes += sent + lines.len() as u64;
        Ok(())
    }
}
