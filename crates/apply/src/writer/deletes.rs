//! Rows to delete by their keys: as a list, or, if these are many integers, packed ([`crate::keys`]).

use std::sync::Arc;

use super::given::before;
use super::{ROWS_IN_A_ROW, Writer};
use crate::keys::{PACK_FROM, Packed, pack, packable};
use crate::row::{Cell, OwnedRow};
use crate::statements::Verb;
use crate::table::Table;

impl Writer {
    /// Deletes rows. Returns how many were there.
    pub(super) fn delete(
        &mut self,
        table: &Arc<Table>,
        keys: &[&OwnedRow],
    ) -> lockstep_client::Result<u64> {
        if let Some(buckets) = packed(table, keys) {
            return self.delete_packed(table, &buckets);
        }
        let rows: Vec<_> = keys.iter().copied().map(before).collect();
        self.run(table, Verb::Delete, &rows)
    }

    /// Deletes bucket after bucket: the server works on one while the next is sent.
    fn delete_packed(
        &mut self,
        table: &Arc<Table>,
        buckets: &[Packed],
    ) -> lockstep_client::Result<u64> {
        self.make_room(2)?;
        let verb = |bucket: &Packed| match bucket {
            Packed::Runs(_) => Verb::DeleteRuns,
            Packed::Offsets { .. } => Verb::DeleteOffsets,
        };
        let named = buckets.iter().map(|bucket| {
            let prepared = self.prepare(table, verb(bucket), Vec::new());
            prepared.map(|(name, _)| name)
        });
        let named = named.collect::<lockstep_client::Result<Vec<_>>>()?;
        let mut pipeline = self.connection.pipeline()?;
        for (bucket, name) in buckets.iter().zip(&named) {
            let values = bucket.values();
            self.sent_bytes += values.iter().map(|value| value.len() as u64).sum::<u64>();
            pipeline.change_binary(name, values)?;
        }
        let answers = pipeline.finish()?;
        Ok(answers.iter().map(|answer| answer.affected).sum())
    }
}

/// The keys of rows to delete, packed. None if they are few, or not of one integer each.
fn packed(table: &Table, keys: &[&OwnedRow]) -> Option<Vec<Packed>> {
    packable(table).filter(|_| keys.len() >= PACK_FROM)?;
    let texts = keys.iter().map(|key| match key.cells().next() {
        Some(Cell::Text(text)) => text,
        _ => &[][..],
    });
    pack(texts, ROWS_IN_A_ROW)
}
