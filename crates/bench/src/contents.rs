//! What the tables of a database hold, to compare source and target: figures of a copy that lost
//! rows are worth nothing.

use lockstep_client::{ClientError, Connection, field};
use lockstep_lab::LabError;

use crate::Result;

/// What a table of schema public holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contents {
    pub table: String,
    pub rows: u64,
    /// The sum of all rows' hashes.
    hashes: String,
    /// Valid indexes.
    indexes: u64,
}

/// What each table of schema public holds.
pub fn contents(session: &mut Connection) -> Result<Vec<Contents>, ClientError> {
    let listed = session.query(
        "SELECT c.relname, (SELECT count(*) FROM pg_index i WHERE i.indrelid = c.oid AND i.indisvalid) \
         FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' \
         ORDER BY c.relname COLLATE \"C\"",
    )?;
    let mut found = Vec::new();
    for row in listed {
        let table: String = field(&row, 0)?;
        let held = session.query_one(&format!(
            "SELECT count(*), coalesce(sum(hash_record_extended(t, 0)::numeric), 0)::text \
             FROM public.{table} t"
        ))?;
        found.push(Contents {
            rows: field(&held, 0)?,
            hashes: field(&held, 1)?,
            indexes: field(&row, 1)?,
            table,
        });
    }
    Ok(found)
}

/// An error unless the target has what the source has.
pub fn check_equal(source: &[Contents], target: &[Contents]) -> Result<()> {
    if source == target {
        return Ok(());
    }
    let wrong = source.iter().find(|wanted| !target.contains(wanted));
    let wrong = match wrong {
        Some(wanted) => format!("table {} is not as on the source", wanted.table),
        None => "it has tables that the source lacks".to_owned(),
    };
    Err(LabError::Measurement(format!("the target is not equal to the source: {wrong}")).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(name: &str, rows: u64, hashes: &str, indexes: u64) -> Contents {
        Contents {
            table: name.to_owned(),
            rows,
            hashes: hashes.to_owned(),
            indexes,
        }
    }

    #[test]
    fn a_difference_is_named() {
        let source = [table("a", 2, "7", 1), table("b", 1, "3", 0)];
        check_equal(&source, &source).unwrap();
        for other in [
            table("a", 1, "7", 1),
            table("a", 2, "8", 1),
            table("a", 2, "7", 0),
        ] {
            let target = [other, source[1].clone()];
            let error = check_equal(&source, &target).unwrap_err().to_string();
            assert!(error.contains("table a is not"), "{error}");
        }
        assert!(check_equal(&source, &source[..1]).is_err());
        assert!(check_equal(&source[..1], &source).is_err());
    }
}
