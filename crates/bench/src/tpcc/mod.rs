//! TPC-C's data and its five transactions, as pgbench scripts, and its consistency
//! conditions.
//!
//! The clauses named here are those of the TPC-C specification, revision 5.11. What
//! differs from it is listed in `bench/README.md`; above all there are no keying and
//! think times, so that figures cannot be compared with published ones.
//!
//! Everything runs through PostgreSQL's own psql and pgbench, so that a connection can be
//! given in each way that libpq knows: conninfo, URI, `PG*` variables, service and password files.

mod check;
mod fill;
mod load;
mod random;
mod report;
mod run;
mod schema;
mod scripts;
mod tools;

pub use crate::error::TpccError;
pub use check::{CONDITIONS, Condition, Definition, check, check_only};
pub use load::{LoadOptions, load};
pub use random::NuRand;
pub use report::{Report, TransactionReport};
pub use run::{RunOptions, run};
pub use schema::{SCHEMA, TABLES};
pub use scripts::{MAX_TRIES, Transaction, options};
pub use tools::Tools;

/// Rows of `item`, and of `stock` in each warehouse (clause 1.2.1).
pub const ITEMS: u32 = 100_000;

/// Districts of a warehouse.
pub const DISTRICTS: u32 = 10;

/// Customers of a district, and its orders after loading.
pub const CUSTOMERS: u32 = 3_000;

/// The first order of a district that is not delivered yet after loading.
pub const FIRST_NEW_ORDER: u32 = 2_101;

/// Fewest and most lines of an order.
pub const LINES: (u32, u32) = (5, 15);

/// Most warehouses that can be asked for, about 1 TB.
pub const MAX_WAREHOUSES: u32 = 10_000;
