//! The driver's contract, and what is particular to containers, with real engines.
//!
//! `HERDLET_TEST_DOCKER` and `HERDLET_TEST_PODMAN` name the sockets of private engines with the image [`IMAGE`]. Without them the
//! tests are left out. The engine in the agent needs root and cgroups only.

mod answers;
mod builtin;
mod contract;
mod faults;
mod features;
mod images;
mod machine;
mod networks;
mod owners;

use machine::{Machine, every_machine};

/// An image with busybox, made by the tests' setup.
const IMAGE: &str = "herdlet-test/busybox:1";
