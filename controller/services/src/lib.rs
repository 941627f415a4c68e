//! Service registration, and the checks of services.
//!
//! In: registrations, checks. Out: catalogues that match them, results. This crate does not know the consequences of
//! results.

pub mod catalog;
pub mod checks;
pub mod report;
