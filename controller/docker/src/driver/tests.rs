//! The driver's contract, and what is particular to containers, with real engines.
//!
//! `HERDLET_TEST_DOCKER` and `HERDLET_TEST_PODMAN` name the sockets of private engines with the image [`IMAGE`]. Without them the
//! tests are left out.

mod answers;
mod contract;
mod faults;
mod features;
mod images;
mod machine;
mod networks;
mod owners;

use machine::{Machine, machines};

/// An image with busybox, made by the tests' setup.
const IMAGE: &str = "herdlet-test/busybox:1";
