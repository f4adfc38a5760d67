//! The program as users run it, and the tree that it is built from.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used
)]

mod browser;
mod clusters;
mod command_line;
mod doctor;
mod doctor_all_clear;
mod doctor_matrix;
mod doctor_names;
mod doctor_pasted;
mod doctor_pooled;
mod doctor_relay;
mod doctor_replica;
mod doctor_restarted;
mod doctor_roles;
mod doctor_standbys;
mod doctor_support;
mod doctor_unfed;
mod doctor_unnamed;
mod house;
mod kubernetes;
mod links;
mod moving;
mod nodes_file;
mod packaged_metrics;
mod pool_add;
mod pool_agent;
mod pool_failover;
mod pool_haproxy;
mod pool_patroni;
mod pool_runtime;
mod pool_support;
mod pool_tokens;
mod relay;
mod relay_back;
mod relay_cancel;
mod relay_clients;
mod relay_console;
mod relay_descriptions;
mod relay_limits;
mod relay_primary;
mod relay_reads_alike;
mod relay_reload;
mod relay_rights;
mod relay_scarce;
mod relay_spool;
mod relay_status;
mod relay_support;
mod relay_survives;
mod relay_synchronous;
mod relay_terminate;
mod relay_two_phase;
mod relay_writes_alike;
mod replica;
mod replica_alter;
mod replica_chain;
mod replica_cycles;
mod replica_daemon;
mod replica_failover;
mod replica_haproxy;
mod replica_memory;
mod replica_pool;
mod replica_promote;
mod replica_publication;
mod replica_schemas;
mod replica_spool;
mod replica_subsets;
mod replica_switchover;
mod replica_switchovers;
mod replica_verify;
mod replica_waits;
mod serve;
mod serve_history;
mod serve_page;
mod serve_pool;
mod serve_relay;
mod serve_support;
mod terminal;
mod top;
mod wal_analyze;
mod wal_server;

lockstep_lab::reaper_entry!();
