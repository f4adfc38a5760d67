//! Damaged WAL: where it ends, and that this is said.
