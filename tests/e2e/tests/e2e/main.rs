//! End to end: the real program with real processes, cgroups, mounts and a real Consul. Each test has an
//! agent, directories and an instance of its own, and ends with the check that nothing of it remains on the
//! machine. As root each test process has network and mount namespaces of its own.
//!
//! Tests that a machine can't run (no root, no Consul) are reported as skipped, and fail in CI.

#![expect(clippy::unwrap_used, reason = "a test that cannot continue ends with the reason")]

mod agent;
mod checks;
mod clients;
mod cni;
mod collect;
mod commands;
mod common;
mod compose;
mod consul;
mod consul_clusters;
mod consul_tokens;
mod containers;
mod containers_builtin;
mod crash;
mod csi;
mod deployments;
mod disk;
mod dispatch;
mod dns;
mod drain;
mod drift;
mod engines;
mod examples;
mod faults;
mod files;
mod folders;
mod identity;
mod in_place;
mod isolated;
mod isolated_jobs;
mod metrics;
mod names;
mod namespaces;
mod network_views;
mod networks;
mod nobody;
mod node;
mod output;
mod paced;
mod page;
mod partition;
mod periodic;
mod placement;
mod processes;
mod prune;
mod published;
mod reload;
mod reschedule;
mod run;
mod scale;
mod secrets;
mod security;
mod service_manager;
mod services;
mod shapes;
mod shortage;
mod stopped;
mod system;
mod task_api;
mod task_networks;
mod templates;
mod traefik;
mod upgrade;
mod variables;
mod vault;
mod verbs;
mod versions;
mod victims;
mod volumes;
mod watch;
